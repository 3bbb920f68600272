// Three things: a form starts a run of the DAG that it names; a link to Airflow opens there, and not in the frame that
// Airflow shows this page in; what is on the page is kept fresh. Runs are started as Airflow's own UI does it: by the
// REST interface, which knows the user by the session's cookie, asks whether that user may, and keeps who it was.
const base = new URL(".", document.currentScript.src);
const api = new URL("../api/v2/dags/", base);
const EVERY_MS = 15000;

async function call(path, options = {}) {
  const answer = await fetch(new URL(path, api), { headers: { "Content-Type": "application/json" }, ...options });
  const body = await answer.json();
  if (answer.ok) return body;
  const said = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail);
  throw Object.assign(new Error(said), { refused: true });
}

// What the form holds becomes the run's conf. A field with data-list holds names, between commas or blanks.
function conf(form) {
  const found = {};
  for (const { name, type, value, checked, dataset } of form.elements) {
    if (!name || !value.trim()) continue;
    if (type === "checkbox") found[name] = checked;
    else if ("list" in dataset) found[name] = value.split(/[\s,]+/).filter(Boolean);
    else found[name] = type === "datetime-local" ? new Date(`${value}Z`).toISOString() : value;
  }
  return found;
}

async function trigger(form) {
  const body = JSON.stringify({ logical_date: null, conf: conf(form) });
  const dag = encodeURIComponent(form.dataset.dag);
  const run = await call(`${dag}/dagRuns`, { method: "POST", body });
  const { is_paused: paused } = await call(dag).catch(() => ({}));
  return `${run.dag_id}: run ${run.dag_run_id} is ${run.state}.${paused ? " It starts when the DAG is switched on." : ""}`;
}

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-dag]");
  if (!form) return;
  event.preventDefault();
  const said = form.querySelector("output");
  const button = form.querySelector("button");
  button.disabled = true;
  said.textContent = "...";
  said.textContent = await trigger(form).catch((error) =>
    error.refused ? `Not started: ${error.message}` : `No answer (${error.message}). Check whether the run exists before you try again.`,
  );
  button.disabled = false;
});

// The frame may not navigate the window around it; a link that belongs to that window may.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-airflow]");
  if (!link || window.parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
  try {
    const outer = window.parent.document.createElement("a");
    outer.href = link.href;
    window.parent.document.body.append(outer);
    event.preventDefault();
    outer.click();
    outer.remove();
  } catch {
    // A frame of another origin: the link opens here.
  }
});

// What is open stays open, what is closed stays closed, and a form that somebody uses or has used stays as it is.
const used = (block) =>
  block.contains(document.activeElement?.closest("form")) ||
  [...block.querySelectorAll("output")].some((output) => output.textContent);

// A summary or a link that has the focus is found again in the fresh block, so that the keyboard stays where it was.
function focusIn(block) {
  const focused = document.activeElement;
  if (!block.contains(focused)) return undefined;
  if (focused.matches("summary")) return `details[data-key="${CSS.escape(focused.parentElement.dataset.key)}"] > summary`;
  return focused.matches("a[href]") ? `a[href="${CSS.escape(focused.getAttribute("href"))}"]` : undefined;
}

function refresh(fresh) {
  const top = window.scrollY;
  for (const block of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${CSS.escape(block.dataset.live)}"]`);
    if (!next || used(block)) continue;
    for (const details of next.querySelectorAll("details[data-key]")) {
      const known = block.querySelector(`details[data-key="${CSS.escape(details.dataset.key)}"]`);
      if (known) details.open = known.open;
    }
    if (next.innerHTML === block.innerHTML) continue;
    const focused = focusIn(block);
    block.replaceChildren(...document.importNode(next, true).childNodes);
    if (focused) block.querySelector(focused)?.focus({ preventScroll: true });
  }
  window.scrollTo({ top, behavior: "instant" });
}

const shownPipelines = (root) => [...root.querySelectorAll("section[id]")].map((section) => section.id).join("\n");

async function reload() {
  if (document.hidden || window.getSelection().toString()) return;
  const answer = await fetch(window.location.href).catch(() => undefined);
  if (!answer || !answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (shownPipelines(fresh) === shownPipelines(document)) refresh(fresh);
  else window.location.reload();
}

setInterval(reload, EVERY_MS);
