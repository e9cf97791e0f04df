// Corrects two faults of the theme that the accessibility checker axe reports.

// A region that scrolls sideways must be focusable to be scrolled with the keyboard.
function markScrollable() {
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0;
    else region.removeAttribute("tabindex");
  }
}
addEventListener("load", markScrollable);
addEventListener("resize", markScrollable);

// The theme puts the button that copies a code block into a navigation landmark without a name.
new MutationObserver(() => {
  for (const bar of document.querySelectorAll(".md-code__nav:not([role])")) bar.role = "none";
}).observe(document.documentElement, { childList: true, subtree: true });
