// Light or dark: the system's setting or the selection. Returns the theme.

function setTheme(name) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const shown = name === "auto" ? (dark ? "dark" : "light") : name;
  document.documentElement.dataset.theme = shown;
  const button = document.getElementById("theme");
  if (button) button.textContent = shown === "dark" ? "Light" : "Dark";
  return shown;
}
