"use strict";
// Controls of the page: they select the theme and the contents of the charts and tables.
const element = id => document.getElementById(id);
const preference = window.matchMedia("(prefers-color-scheme: dark)");
const themeNow = () => document.documentElement.dataset.theme || (preference.matches ? "dark" : "light");
const payload = element("data") ? JSON.parse(element("data").textContent) : null;

function model(name) {
  for (const doc of Bokeh.documents) {
    const found = doc.get_model_by_name(name);
    if (found) return found;
  }
  return null;
}

function chosen(id) {
  return element(id) ? element(id).value : "0";
}

function showCurves() {
  const curves = payload.data.curves[chosen("input")][chosen("coordinate")];
  for (const name of ["density", "cdf"]) {
    const chart = model(`${name}-chart`);
    curves[name].forEach((columns, i) => {
      model(`${name}-${i}`).data = columns;
      const isShown = document.querySelector(`input.policy[data-policy="${i}"]`).checked;
      const isLine = name === "cdf" || curves.smooth;
      for (const part of ["band", "line"]) model(`${name}-${part}-${i}`).visible = isShown && isLine;
      if (name === "density") {
        model(`density-bar-${i}`).glyph.width = {value: curves.width};
        for (const part of ["bar", "ends"]) model(`density-${part}-${i}`).visible = isShown && !isLine;
      }
    });
    chart.x_range.setv({start: curves.range[0], end: curves.range[1]});
    chart.below[0].axis_label = `return ${Number(chosen("coordinate")) + 1}`;
    if (name === "density") chart.left[0].axis_label = curves.smooth ? "density" : "probability";
  }
  for (const part of document.querySelectorAll(".at-input")) part.hidden = part.dataset.input !== chosen("input");
}

function showDifferences() {
  if (!element("difference")) return;
  const columns = payload.data.differences[chosen("pair")][chosen("coordinate")][chosen("summary")];
  model("difference-0").data = {y: payload.data.inputs, ...columns};
  model("difference-chart").below[0].axis_label = `difference of return ${Number(chosen("coordinate")) + 1}`;
}

function paint(theme) {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, paper, line] = ["--ink", "--soft", "--paper", "--line"]
    .map(name => style.getPropertyValue(name).trim());
  document.documentElement.dataset.painted = theme;
  const colours = payload ? payload.data.colours[theme] : [];
  for (const swatch of document.querySelectorAll(".swatch"))
    swatch.style.borderTopColor = colours[swatch.dataset.policy % colours.length];
  if (!payload) return;
  for (const name of ["density", "cdf", "difference"]) {
    const chart = model(`${name}-chart`);
    if (!chart) continue;
    chart.setv({background_fill_color: paper, border_fill_color: paper, outline_line_color: line});
    for (const axis of [...chart.below, ...chart.left])
      axis.setv({axis_label_text_color: ink, major_label_text_color: soft, axis_line_color: soft,
        major_tick_line_color: soft, minor_tick_line_color: null});
    for (const grid of chart.center) if ("grid_line_color" in grid.properties) grid.setv({grid_line_color: line});
    for (const renderer of chart.renderers) {
      if (renderer.name === "zero") continue;
      const colour = {value: colours[Number(renderer.name.split("-").pop()) % colours.length]};
      const properties = renderer.glyph.properties;
      if ("fill_color" in properties) renderer.glyph.fill_color = colour;
      if ("line_color" in properties) renderer.glyph.line_color = colour;
    }
  }
}

element("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = themeNow() === "dark" ? "light" : "dark";
  paint(themeNow());
});
preference.addEventListener("change", () => paint(themeNow()));
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});

if (payload) {
  Promise.all(Object.values(payload.items).map(item => Bokeh.embed.embed_item(item))).then(() => {
    for (const id of ["input", "coordinate"]) element(id).addEventListener("change", showCurves);
    for (const box of document.querySelectorAll("input.policy")) box.addEventListener("change", showCurves);
    for (const id of ["coordinate", "pair", "summary"])
      if (element(id)) element(id).addEventListener("change", showDifferences);
    // A browser may restore earlier selections when the page is reloaded.
    showCurves();
    showDifferences();
    paint(themeNow());
    document.documentElement.dataset.ready = "yes";
  });
} else {
  document.documentElement.dataset.ready = "yes";
}
