// Set the chosen theme before the first paint.
try {
  const kept = localStorage.getItem("hushbit-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* a page opened from a file may have no storage: follow the system's theme */ }
