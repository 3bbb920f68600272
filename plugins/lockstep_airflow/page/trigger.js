// Each form starts a run of the DAG that it names, as Airflow's own UI does: by the REST interface, which knows the user by
// the session's cookie, asks whether that user may, and keeps who it was. What the form holds becomes the run's conf.
const api = new URL("../api/v2/dags/", document.currentScript.src);

async function call(path, options = {}) {
  const answer = await fetch(new URL(path, api), { headers: { "Content-Type": "application/json" }, ...options });
  const body = await answer.json();
  if (answer.ok) return body;
  const said = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail);
  throw Object.assign(new Error(said), { refused: true });
}

function conf(form) {
  const found = {};
  for (const { name, type, value, checked } of form.elements) {
    if (!name || !value) continue;
    if (type === "checkbox") found[name] = checked;
    else found[name] = type === "datetime-local" ? new Date(`${value}Z`).toISOString() : value;
  }
  return found;
}

async function trigger(form) {
  const body = JSON.stringify({ logical_date: null, conf: conf(form) });
  const dag = encodeURIComponent(form.dataset.dag);
  const run = await call(`${dag}/dagRuns`, { method: "POST", body });
  const { is_paused: paused } = await call(dag).catch(() => ({}));
  return `${run.dag_id}: run ${run.dag_run_id} is ${run.state}.${paused ? " It begins when the DAG is switched on." : ""}`;
}

for (const form of document.querySelectorAll("form[data-dag]")) {
  const said = form.querySelector("output");
  const button = form.querySelector("button");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    said.textContent = "...";
    said.textContent = await trigger(form).catch((error) =>
      error.refused ? `Not started: ${error.message}` : `No answer (${error.message}). Look for the run before you try again.`,
    );
    button.disabled = false;
  });
}
