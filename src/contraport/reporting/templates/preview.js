// Preview of an item: image, text, bars of a vector or lines of a series.
function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function drawing(width, height, label) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label })) svg.setAttribute(key, value);
  return svg;
}

function shape(svg, name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  svg.append(made);
  return made;
}

const PREVIEW_BY_KIND = {
  image: (view, label) => element("img", { src: view.uri, alt: label }),
  text: (view) => element("p", { textContent: view.text, tabIndex: 0 }),
  vector: (view, label) => {
    const svg = drawing(view.values.length, 200, `${label}, a vector`);
    shape(svg, "line", { class: "base", x1: 0, x2: view.values.length, y1: 100, y2: 100 });
    shape(svg, "path", { class: "bars", d: view.values.map((value, place) => `M${place + 0.1},100h.8V${100 - value}h-.8z`).join("") });
    return svg;
  },
  series: (view, label) => {
    const last = Math.max(view.values[0].length - 1, 1);
    const svg = drawing(last, 200, `${label}, a series`);
    for (const channel of view.values) shape(svg, "polyline", { class: "channel", points: channel.map((value, place) => `${place},${100 - value}`).join(" ") });
    return svg;
  },
};

function preview(view, label) { return PREVIEW_BY_KIND[view.is](view, label); }
