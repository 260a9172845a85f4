"use strict";
// Sorting and filtering of the table, and the choice of light or dark. The figures are there without it.
(() => {
  const body = document.querySelector("#cases tbody");
  const rows = [...body.rows];
  const heads = [...document.querySelectorAll("#cases th")];
  const search = document.querySelector("#search");
  const selects = [...document.querySelectorAll("#filters select")];
  const count = document.querySelector("#count");
  const keys = rows.map((row) => [...row.cells].map((cell) => cell.dataset.key ?? cell.textContent.toLowerCase()));
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const order = new Map(rows.map((row, index) => [row, index]));

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      const fits = words.every((word) => texts[index].includes(word)) &&
        selects.every((select) => !select.value || row.dataset[select.dataset.column] === select.value);
      row.hidden = !fits;
      shown += fits;
    });
    count.textContent = `${shown} of ${rows.length} rows`;
  };

  const sort = (column) => {
    const head = heads[column];
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const isNumber = head.classList.contains("number");
    const key = (row) => keys[order.get(row)][column];
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // what is missing stays at the end
      const less = isNumber ? Number(x) - Number(y) : (x > y) - (x < y);
      return up ? less : -less;
    });
    body.append(...sorted);
  };

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sort(column)));
  search.addEventListener("input", filter);
  selects.forEach((select) => select.addEventListener("change", filter));
  document.querySelector("#filters").addEventListener("submit", (event) => event.preventDefault());

  const root = document.documentElement;
  const button = document.querySelector("#theme");
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    button.textContent = isDark() ? "Light" : "Dark";
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  show();
})();
