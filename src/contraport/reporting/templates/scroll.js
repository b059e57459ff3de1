// Shows a hint above tables that are wider than the page.
function hint() {
  for (const box of document.querySelectorAll(".hint + .scroll")) box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth;
}

hint();
addEventListener("resize", hint);
document.addEventListener("toggle", hint, true);
