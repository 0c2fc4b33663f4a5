// -- charts of steps --
for (const figure of document.querySelectorAll("[data-gantt]")) {
  const packed = figure.querySelector("script").textContent;
  tracekitChart.unpacked(packed).then((data) => {
    const chart = new tracekitChart.Chart(figure, data);
    redraws.push(() => chart.draw());
    figure.dataset.ready = "yes";
  }).catch(() => { figure.querySelector(".picked").textContent = "This browser is too old to draw the chart."; });
}
