// The plotting library is most of the page, so it is stored compressed.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// Previews of the items in tables.
function previews() {
  for (const box of document.querySelectorAll("[data-preview]")) box.append(preview(DATA.previews[box.dataset.preview], box.dataset.label));
}

function print(begins) {
  if (begins) document.documentElement.dataset.theme = "light";
  else delete document.documentElement.dataset.theme;
  document.querySelectorAll("details").forEach((details) => { details.open ||= begins; });
  redraw();
}

function next(waiting) {
  const box = waiting.shift();
  if (!box) {
    Object.assign(document.documentElement.dataset, { drawn: "all", drawnAfter: Math.round(performance.now()) });
    return;
  }
  draw(box);
  setTimeout(() => next(waiting));
}

plans();
previews();
controls();
maps();
unpack(PACKED).then((source) => {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
  next(boxes());
  DARK.addEventListener("change", redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
});
