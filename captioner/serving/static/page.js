/* The page: a photo in, its captions out, shown by the viewer (viewer.js). */
(function () {
  "use strict";

  const CONSIDERED = 4; // captions to list, where the beam is wide enough
  const EVERY = "*"; // in the choice of the model: all of them, to compare
  const $ = (id) => document.getElementById(id);

  let models = [];
  let photo = null; // {file, url}
  let shown = null; // {answers: what the server said, rank, own: whether the caption was brought}
  let viewer = null;
  let asking = null; // cancels the request that is under way

  // --- the server -------------------------------------------------------------------------------

  class Refusal extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  async function ask(path, options = {}) {
    const token = sessionStorage.getItem("token");
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(0, "the server cannot be reached");
    }
    if (response.ok) return response;
    const problem = await response.json().catch(() => ({}));
    throw new Refusal(response.status, problem.detail || response.statusText);
  }

  function send(path, fields, signal) {
    const form = new FormData();
    form.append("image", photo.file, photo.file.name || "photo");
    for (const [name, value] of Object.entries(fields))
      if (value !== "" && value !== null) form.append(name, String(value));
    return ask(path, { method: "POST", body: form, signal });
  }

  // --- what the page says -----------------------------------------------------------------------

  function tell(text, working = false) {
    $("status").textContent = text;
    $("status").classList.toggle("working", working);
  }

  function complain(error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refusal)) console.error(error);
    tell("");
    $("login").hidden = error.status !== 401;
    if (error.status === 401) $("token").focus();
    const text = error.message || "something went wrong";
    $("problem").textContent = `${text[0].toUpperCase()}${text.slice(1)}.`;
    $("problem").hidden = error.status === 401;
  }

  function calm() {
    $("problem").hidden = true;
    $("login").hidden = true;
  }

  /** Do one thing at a time: what is new ends what is under way. */
  async function during(text, task) {
    if (asking) asking.abort();
    const mine = (asking = new AbortController());
    calm();
    tell(text, true);
    try {
      await task(mine.signal);
      if (asking === mine) tell("");
    } catch (error) {
      if (asking === mine) complain(error);
    } finally {
      if (asking === mine) asking = null;
    }
  }

  // --- captions ---------------------------------------------------------------------------------

  function chosen() {
    const name = $("model").value;
    return name === EVERY ? models : models.filter((model) => model.name === name);
  }

  function settings(model) {
    return { model: model.name, at_test: model.attention === "hard" ? $("at-test").value : "" };
  }

  function beamOf(model) {
    return $("beam").checkValidity() && $("beam").value ? Number($("beam").value) : model.beam_size;
  }

  function caption() {
    if (!photo || !models.length) return Promise.resolve();
    if (!$("beam").reportValidity()) return Promise.resolve();
    const { file } = photo;
    return during("Looking at the photo", async (signal) => {
      const answers = await Promise.all(chosen().map(async (model) => {
        const beam = beamOf(model);
        const fields = { ...settings(model), beam_size: beam, maps: true,
          num_captions: Math.min(beam, CONSIDERED) };
        return (await send("/v1/captions", fields, signal)).json();
      }));
      if (photo.file === file) show({ answers, rank: 0, own: false });
    });
  }

  function score(text) {
    if (!photo) return Promise.resolve();
    return during("Reading your caption", async (signal) => {
      const answers = await Promise.all(chosen().map(async (model) => {
        const fields = { ...settings(model), caption: text, maps: true };
        return (await send("/v1/scores", fields, signal)).json();
      }));
      show({ answers, rank: 0, own: true });
    });
  }

  function captionOf(answer) {
    return shown.own ? answer.caption : answer.captions[shown.rank] || answer.captions[0];
  }

  function show(next) {
    shown = next;
    if (viewer) viewer.destroy();
    const captions = shown.answers.map(captionOf);
    $("result").hidden = false;
    document.body.classList.add("has-photo");
    $("pick-label").firstChild.data = "Another photo ";
    viewer = new window.CaptionViewer($("viewer"), {
      photo: photo.url,
      alt: captions[0].caption,
      models: shown.answers.map((answer, index) => ({ name: answer.model, ...captions[index] })),
    });
    document.title = `${captions[0].caption} · captioner`;
    listOthers();
    tellOwn();
  }

  function totalOf(caption) {
    return caption.log_probs.reduce((sum, each) => sum + each, caption.end_log_prob || 0);
  }

  function signed(number, digits) {
    return number.toFixed(digits).replace("-", "\u2212");
  }

  function listOthers() {
    const answer = shown.answers[0];
    const captions = shown.own || shown.answers.length > 1 ? [] : answer.captions;
    $("others-card").hidden = captions.length < 2;
    $("others").replaceChildren(...captions.map((each, rank) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(rank === shown.rank));
      const figure = document.createElement("small");
      figure.textContent = signed(totalOf(each), 1);
      figure.title = "log-probability";
      button.append(each.caption, figure);
      button.addEventListener("click", () => {
        show({ ...shown, rank });
        $("others").querySelectorAll("button")[rank].focus();
      });
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
  }

  function tellOwn() {
    const told = [];
    if (shown.own)
      for (const answer of shown.answers) {
        const name = shown.answers.length > 1 ? `${answer.model}: ` : "";
        told.push(`${name}log-probability ${signed(answer.log_prob, 2)}.`);
        if (answer.unknown_words.length)
          told.push(`Read as unknown words: ${answer.unknown_words.join(", ")}.`);
      }
    $("own-told").textContent = told.join(" ");
    $("own-back").hidden = !shown.own;
  }

  // --- a photo comes ----------------------------------------------------------------------------

  function take(file) {
    if (!file) {
      complain(new Refusal(0, "that holds no photo; choose or paste a picture"));
      return;
    }
    if (photo) URL.revokeObjectURL(photo.url);
    photo = { file, url: URL.createObjectURL(file) };
    if (viewer) viewer.destroy();
    viewer = shown = null;
    $("result").hidden = true;
    $("own-text").value = "";
    caption();
  }

  for (const id of ["pick", "take"])
    $(id).addEventListener("change", (event) => {
      if (event.target.files.length) take(event.target.files[0]);
      event.target.value = ""; // so that the same file can be chosen again
    });

  document.addEventListener("paste", (event) => {
    const [file] = event.clipboardData.files;
    const typing = event.target instanceof Element && event.target.closest("input, textarea");
    if (!file && typing) return;
    event.preventDefault();
    take(file);
  });

  let inside = 0; // dragenter and dragleave come for every element that is passed
  document.addEventListener("dragenter", (event) => {
    event.preventDefault();
    inside++;
    $("drop").classList.add("over");
  });
  document.addEventListener("dragleave", () => {
    if (--inside <= 0) $("drop").classList.remove("over");
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    inside = 0;
    $("drop").classList.remove("over");
    take(event.dataTransfer.files[0]);
  });

  // --- choices, downloads -----------------------------------------------------------------------

  function again() {
    const own = shown && shown.own && $("own-text").value.trim();
    return own ? score(own) : caption();
  }

  function modelChanged() {
    const [first] = chosen();
    $("at-test-label").hidden = !chosen().some((model) => model.attention === "hard");
    if (!$("beam").value) $("beam").value = first.beam_size;
    again();
  }

  $("model").addEventListener("change", modelChanged);
  $("at-test").addEventListener("change", again);
  $("beam").addEventListener("change", () => {
    if (shown && shown.own) return;
    caption();
  });
  $("own").addEventListener("submit", (event) => {
    event.preventDefault();
    score($("own-text").value.trim());
  });

  $("own-back").addEventListener("click", () => {
    $("own-text").value = "";
    $("own-text").focus();
    caption();
  });

  function save(blob, format) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    const name = (photo.file.name || "photo").replace(/\.[^.]*$/, "");
    link.download = `${name}.caption.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  async function download(button) {
    const { format } = button.dataset;
    const index = viewer.model; // of several models, the one that is looked at
    const answer = shown.answers[index];
    if (format === "json") {
      const text = JSON.stringify(shown.answers.length > 1 ? shown.answers : answer, null, 1);
      save(new Blob([text], { type: "application/json" }), format);
      return;
    }
    const model = models.find((each) => each.name === answer.model);
    const fields = { ...settings(model), format };
    if (shown.own || shown.rank) fields.caption = captionOf(answer).caption;
    else fields.beam_size = answer.beam_size;
    calm();
    button.setAttribute("aria-busy", "true");
    tell(`Drawing the ${format.toUpperCase()}`, true);
    try {
      save(await (await send("/v1/pictures", fields)).blob(), format);
      tell("");
    } catch (error) {
      complain(error);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  for (const button of document.querySelectorAll("[data-format]"))
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-busy") !== "true") download(button);
    });

  // --- begin ------------------------------------------------------------------------------------

  async function begin() {
    models = (await (await ask("/v1/models")).json()).models;
    const names = models.map((model) =>
      [model.name, model.name === model.attention ? `${model.name} attention`
        : `${model.name} (${model.attention} attention)`]);
    if (models.length > 1) names.push([EVERY, "compare all"]);
    $("model").replaceChildren(...names.map(([value, text]) => new Option(text, value)));
    modelChanged();
  }

  $("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", $("token").value);
    calm();
    begin().catch(complain);
  });

  begin().catch(complain);
})();
