/* The page: a photo in, its captions out, shown by the viewer (viewer.js). */
(function () {
  "use strict";

  const ALTERNATIVES = 4; // captions to list, where the beam is wide enough
  const ALL_MODELS = "*"; // a choice of the model selector: compare all of them
  const $ = (id) => document.getElementById(id);

  let models = [];
  let photo = null; // {file, url}
  let shown = null; // {answers: of the server, rank, own: whether the user wrote the caption}
  let viewer = null;
  let current = null; // AbortController of the request in progress

  // --- the server -------------------------------------------------------------------------------

  class RequestError extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  async function request(path, options = {}) {
    const token = sessionStorage.getItem("token");
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError(0, "the server cannot be reached");
    }
    if (response.ok) return response;
    const problem = await response.json().catch(() => ({}));
    throw new RequestError(response.status, problem.detail || response.statusText);
  }

  function send(path, fields, signal) {
    const form = new FormData();
    form.append("image", photo.file, photo.file.name || "photo");
    for (const [name, value] of Object.entries(fields))
      if (value !== "" && value !== null) form.append(name, String(value));
    return request(path, { method: "POST", body: form, signal });
  }

  // --- status and errors -----------------------------------------------------------------------

  function showStatus(text, working = false) {
    $("status").textContent = text;
    $("status").classList.toggle("working", working);
  }

  function showError(error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof RequestError)) console.error(error);
    showStatus("");
    $("login").hidden = error.status !== 401;
    if (error.status === 401) $("token").focus();
    const refused = error.status === 401 && sessionStorage.getItem("token");
    const text = refused ? "this token is not the server's" : error.message || "something went wrong";
    $("problem").textContent = `${text[0].toUpperCase()}${text.slice(1)}.`;
    $("problem").hidden = error.status === 401 && !refused;
  }

  function clearErrors() {
    $("problem").hidden = true;
    $("login").hidden = true;
  }

  /** Run one task at a time: a new one cancels the one in progress. */
  async function runExclusively(text, task) {
    if (current) current.abort();
    const mine = (current = new AbortController());
    clearErrors();
    showStatus(text, true);
    try {
      await task(mine.signal);
      if (current === mine) showStatus("");
    } catch (error) {
      if (current === mine) showError(error);
    } finally {
      if (current === mine) current = null;
    }
  }

  // --- captions ---------------------------------------------------------------------------------

  function chosen() {
    const name = $("model").value;
    return name === ALL_MODELS ? models : models.filter((model) => model.name === name);
  }

  function settings(model) {
    return { model: model.name, at_test: model.attention === "hard" ? $("at-test").value : "" };
  }

  function beamOf(model) {
    return $("beam").checkValidity() && $("beam").value ? Number($("beam").value) : model.beam_size;
  }

  function caption() {
    if (!photo) return Promise.resolve();
    if (!models.length) return start().catch(showError); // not logged in
    if (!$("beam").reportValidity()) return Promise.resolve();
    const { file } = photo;
    return runExclusively("Captioning the photo", async (signal) => {
      const answers = await Promise.all(chosen().map(async (model) => {
        const beam = beamOf(model);
        const fields = { ...settings(model), beam_size: beam, maps: true,
          num_captions: Math.min(beam, ALTERNATIVES) };
        return (await send("/v1/captions", fields, signal)).json();
      }));
      if (photo.file === file) show({ answers, rank: 0, own: false });
    });
  }

  function score(text) {
    if (!photo) return Promise.resolve();
    return runExclusively("Scoring your caption", async (signal) => {
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
    showAlternatives();
    showOwnScore();
  }

  function totalLogProb(caption) {
    return caption.log_probs.reduce((sum, each) => sum + each, caption.end_log_prob || 0);
  }

  function signed(number, digits) {
    return number.toFixed(digits).replace("-", "\u2212");
  }

  function showAlternatives() {
    const answer = shown.answers[0];
    const captions = shown.own || shown.answers.length > 1 ? [] : answer.captions;
    $("others-card").hidden = captions.length < 2;
    $("others").replaceChildren(...captions.map((each, rank) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(rank === shown.rank));
      const figure = document.createElement("small");
      figure.textContent = signed(totalLogProb(each), 1);
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

  function showOwnScore() {
    const sentences = [];
    if (shown.own)
      for (const answer of shown.answers) {
        const name = shown.answers.length > 1 ? `${answer.model}: ` : "";
        sentences.push(`${name}log-probability ${signed(answer.log_prob, 2)}.`);
        if (answer.unknown_words.length)
          sentences.push(`Scored as unknown words: ${answer.unknown_words.join(", ")}.`);
      }
    $("own-score").textContent = sentences.join(" ");
    $("own-back").hidden = !shown.own;
  }

  // --- choosing a photo ----------------------------------------------------------------------------

  function take(file) {
    if (!file) {
      showError(new RequestError(0, "there is no photo in that; choose or paste one"));
      return;
    }
    // Even if this photo cannot be captioned yet: an answer about the last one is not about it.
    if (current) current.abort();
    showStatus("");
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

  $("sample").addEventListener("click", async () => {
    try {
      const photo = await (await request("/sample.jpg")).blob();
      take(new File([photo], "sample.jpg", { type: "image/jpeg" }));
    } catch (error) {
      showError(error);
    }
  });

  document.addEventListener("paste", (event) => {
    const [file] = event.clipboardData.files;
    const typing = event.target instanceof Element && event.target.closest("input, textarea");
    if (!file && typing) return;
    event.preventDefault();
    take(file);
  });

  let dragDepth = 0; // dragenter and dragleave come for every element on the way
  document.addEventListener("dragenter", (event) => {
    event.preventDefault();
    dragDepth++;
    $("drop").classList.add("over");
  });
  document.addEventListener("dragleave", () => {
    if (--dragDepth <= 0) $("drop").classList.remove("over");
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    dragDepth = 0;
    $("drop").classList.remove("over");
    take(event.dataTransfer.files[0]);
  });

  // --- choices, downloads -----------------------------------------------------------------------

  function repeat() {
    const own = shown && shown.own && $("own-text").value.trim();
    return own ? score(own) : caption();
  }

  function modelChanged() {
    const [first] = chosen();
    $("at-test-label").hidden = !chosen().some((model) => model.attention === "hard");
    if (!$("beam").value) $("beam").value = first.beam_size;
    repeat();
  }

  $("model").addEventListener("change", modelChanged);
  $("at-test").addEventListener("change", repeat);
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

  function save(blob, file, format) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    const name = (file.name || "photo").replace(/\.[^.]*$/, "");
    link.download = `${name}.caption.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  async function download(button) {
    const { format } = button.dataset;
    const { file } = photo; // another one may be on the page when the picture is drawn
    const index = viewer.model; // of several models, the one that is shown
    const answer = shown.answers[index];
    if (format === "json") {
      const text = JSON.stringify(shown.answers.length > 1 ? shown.answers : answer, null, 1);
      save(new Blob([text], { type: "application/json" }), file, format);
      return;
    }
    const model = models.find((each) => each.name === answer.model);
    const fields = { ...settings(model), format };
    if (shown.own || shown.rank) fields.caption = captionOf(answer).caption;
    else fields.beam_size = answer.beam_size;
    clearErrors();
    button.setAttribute("aria-busy", "true");
    showStatus(`Drawing the ${format.toUpperCase()}`, true);
    try {
      save(await (await send("/v1/pictures", fields)).blob(), file, format);
      showStatus("");
    } catch (error) {
      showError(error);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  for (const button of document.querySelectorAll("[data-format]"))
    button.addEventListener("click", () => {
      if (button.getAttribute("aria-busy") !== "true") download(button);
    });

  // --- start ------------------------------------------------------------------------------------

  async function start() {
    models = (await (await request("/v1/models")).json()).models;
    const names = models.map((model) =>
      [model.name, model.name === model.attention ? `${model.name} attention`
        : `${model.name} (${model.attention} attention)`]);
    if (models.length > 1) names.push([ALL_MODELS, "compare all"]);
    $("model").replaceChildren(...names.map(([value, text]) => new Option(text, value)));
    modelChanged();
  }

  $("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", $("token").value);
    clearErrors();
    start().catch(showError);
  });

  $("options").open = window.matchMedia("(min-width: 48rem)").matches; // see page.css
  start().catch(showError);
})();
