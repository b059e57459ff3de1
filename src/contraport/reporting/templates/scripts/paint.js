// Replaces CSS variables in figures by the colors of the theme, as plotly cannot read them.
// Decodes matrices from base64 bytes to rows of numbers.
const DARK = matchMedia("(prefers-color-scheme: dark)");

function rows({ bytes, columns, withoutSelf }) {
  const letters = atob(bytes);
  return Array.from({ length: letters.length / columns }, (_, i) =>
    Array.from({ length: columns }, (_, j) => (withoutSelf && i === j ? null : letters.charCodeAt(i * columns + j))));
}

function paint(value, style) {
  if (typeof value === "string") return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
  if (Array.isArray(value)) return value.map((part) => paint(part, style));
  if (value === null || typeof value !== "object") return value;
  if (value.bytes !== undefined) return rows(value);
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, paint(part, style)]));
}
