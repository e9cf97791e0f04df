// The choice of a theme must stand before anything is painted.
try {
  const kept = localStorage.getItem("hushbit-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* a page opened from a file may have no storage: the system's theme it is */ }
