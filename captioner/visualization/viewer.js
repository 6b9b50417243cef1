/* The viewer of captions: an image, its caption word by word, and the attention map of each word.

   new CaptionViewer(element, {
     photo: URL or data URL of the upright image, from any origin: its pixels are never read,
     alt: the caption, which is the image's text alternative,
     models: [{name, ...Caption.to_dict(maps=True)}, ...],
     display: {style, smooth, colourMap, opacity, threshold, layer, head}   (optional, any of them)
   })

   `viewer.ready` is a promise of the painted image; `viewer.show(index)` chooses a word, null none.
   A plain script without dependencies, inline handlers or style attributes. What each style lays
   over what is a table that Python computes; this and the constants of style.py, by their names,
   are what `viewer_script` puts in front of this file; a test compares the pixels of both. */
(function () {
  "use strict";

  const TABLES = window.captionViewerTables;
  // An image is painted at its own size, within these limits of its longer side: above the first
  // a phone gets slow, below the second lines get coarse.
  const LONGEST_SIDE_PX = 1600;
  const SHORTEST_SIDE_PX = 640;
  const PLAY_MS = 1100;
  const NAMES = { p: "probability", "β": "gate" };
  const STYLES = {
    focus: "focus", light: "light", colour: "colours", contour: "lines only", mask: "dim the rest",
  };
  const COLOURS = Object.fromEntries(Object.entries(TABLES.colours).map(([name, hex]) =>
    [name, Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16))]));
  let viewers = 0; // names of radio groups have to differ on a page

  // A sheet made by a script needs no element, which a Content-Security-Policy could forbid.
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(TABLES.css);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

  // --- attention over pixels: see overlay.py -------------------------------------------------------

  /** Share of a cell in a point this many cells from its centre. */
  function cubic(distance) {
    const d = Math.abs(distance);
    if (d < 1) return (1.5 * d - 2.5) * d * d + 1;
    return d < 2 ? ((-0.5 * d + 2.5) * d - 4) * d + 2 : 0;
  }

  /** Share of each cell of one side in each drawn pixel, [drawn][cells] in one array. */
  function sideWeights(drawn, photo, start, length, cells, smooth) {
    const weights = new Float64Array(drawn * cells);
    for (let pixel = 0; pixel < drawn; pixel++) {
      const position = ((pixel + 0.5) * (photo / drawn) - start) * (cells / length);
      if (position < 0 || position >= cells) continue;
      const row = pixel * cells;
      const here = Math.floor(position);
      if (!smooth) {
        weights[row + here] = 1;
        continue;
      }
      for (let cell = here - 2; cell <= here + 2; cell++) {
        const mirrored = ((cell % (2 * cells)) + 2 * cells) % (2 * cells);
        weights[row + Math.min(mirrored, 2 * cells - 1 - mirrored)] += cubic(position - cell - 0.5);
      }
    }
    return weights;
  }

  /** Weights that lay every map of one grid and geometry on width x height pixels. */
  function projection(geometry, rows, columns, width, height, smooth) {
    const g = geometry;
    const across = sideWeights(width, g.photo_width_px, g.left_px, g.width_px, columns, smooth);
    const down = sideWeights(height, g.photo_height_px, g.top_px, g.height_px, rows, smooth);
    // Most shares are 0: remember where those that are not begin and end.
    const first = new Int32Array(width);
    const end = new Int32Array(width);
    for (let x = 0; x < width; x++) {
      let from = 0;
      let to = columns;
      while (to > 0 && across[x * columns + to - 1] === 0) to--;
      while (from < to && across[x * columns + from] === 0) from++;
      first[x] = from;
      end[x] = to;
    }
    return { rows, columns, width, height, across, down, first, end, flipped: g.flipped };
  }

  /** Heat [height][width] of a map [rows][columns], in multiples of uniform attention. */
  function heatOf(map, laid) {
    const { rows, columns, width, height, across, down, first, end, flipped } = laid;
    const heat = new Float32Array(width * height);
    const line = new Float64Array(columns);
    for (let y = 0; y < height; y++) {
      line.fill(0);
      for (let r = 0; r < rows; r++) {
        const share = down[y * rows + r] * rows * columns;
        if (share)
          for (let c = 0; c < columns; c++)
            line[c] += share * map[r][flipped ? columns - 1 - c : c];
      }
      for (let x = 0; x < width; x++) {
        let sum = 0;
        for (let c = first[x]; c < end[x]; c++) sum += line[c] * across[x * columns + c];
        heat[y * width + x] = sum;
      }
    }
    return heat;
  }

  // --- paint: see style.py and overlay.py -------------------------------------------------------

  /** Where an attention stands on the scale, 0 to 1. */
  function positionOf(heat) {
    const { SCALE_LOW: low, OCTAVES: octaves } = TABLES;
    return Math.min(Math.max(Math.log2(Math.max(heat, low) / low) / octaves, 0), 1);
  }

  function levelOf(heat) {
    return (positionOf(heat) * 255 + 0.5) | 0;
  }

  function opacityOf(display) {
    return display.opacity === null ? TABLES.DEFAULT_OPACITY[display.style] : display.opacity;
  }

  /** How strongly the upper layer covers the lower, 0 to 255 by level of attention. */
  function alphaTable(display) {
    const { alpha, above } = TABLES.styles[display.style];
    const strength = opacityOf(display);
    const below = levelOf(display.threshold);
    return Uint8Array.from(alpha, (value, level) => {
      const kept = level >= below ? value : display.style === "colour" ? 0 : alpha[0];
      return 255 * (above ? strength * kept : 1 - strength * (1 - kept)) + 0.5;
    });
  }

  /** Colours of the upper layer by level, 3 each; null where it is the photo. */
  function upperColours({ style, colourMap, threshold }) {
    const { above } = TABLES.styles[style];
    if (!above) return null;
    const colours = (COLOURS[style] || COLOURS[colourMap]).slice();
    for (let level = 1; level < levelOf(threshold); level++)
      colours.copyWithin(3 * level, 0, 3);
    return colours;
  }

  function linesOf({ style, threshold }) {
    return TABLES.styles[style].lines ? TABLES.LINES.filter(([heat]) => heat >= threshold) : [];
  }

  function rgbOf(colour) {
    return colour.match(/[0-9a-f]{2}/g).map((pair) => parseInt(pair, 16));
  }

  function surface(width, height) {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width, height });
    return canvas.getContext("2d");
  }

  /** Paint heat over the photo. No pixel of it is read, so it may be of another origin. */
  function paint(context, photo, heat, smoothHeat, display) {
    const { width, height } = context.canvas;
    const { base } = TABLES.styles[display.style];
    context.drawImage(photo, 0, 0, width, height);
    if (base !== "photo") {
      context.globalCompositeOperation = "saturation"; // of a grey: none
      context.fillStyle = "#808080";
      context.fillRect(0, 0, width, height);
      context.globalCompositeOperation = "source-over";
    }
    if (base === "lifted") {
      const { LIFTED_SLOPE: slope, LIFTED_OFFSET: offset } = TABLES;
      const grey = Math.round(offset / (1 - slope));
      context.fillStyle = `rgba(${grey}, ${grey}, ${grey}, ${1 - slope})`;
      context.fillRect(0, 0, width, height);
    }
    const upper = surface(width, height);
    const pixels = upper.createImageData(width, height);
    const alpha = alphaTable(display);
    const colours = upperColours(display);
    for (let i = 0, o = 0; i < heat.length; i++, o += 4) {
      const level = levelOf(heat[i]);
      if (colours) pixels.data.set(colours.subarray(3 * level, 3 * level + 3), o);
      pixels.data[o + 3] = alpha[level];
    }
    upper.putImageData(pixels, 0, 0);
    if (!colours) {
      upper.globalCompositeOperation = "source-in";
      upper.imageSmoothingQuality = "high";
      upper.drawImage(photo, 0, 0, width, height);
    }
    context.drawImage(upper.canvas, 0, 0);
    const lines = linesOf(display);
    if (!lines.length) return;
    const drawn = upper.createImageData(width, height);
    coverLines(drawn.data, smoothHeat, width, height, lines);
    upper.putImageData(drawn, 0, 0);
    context.drawImage(upper.canvas, 0, 0);
  }

  /** Lines of equal attention on their dark seams, into an RGBA array. */
  function coverLines(out, heat, width, height, lines) {
    const octaves = heat.map((value) => positionOf(value) * TABLES.OCTAVES - 1);
    const unit = Math.sqrt(width * height) / 200;
    const seam = Math.max(0.8, 0.6 * unit);
    const halves = new Map(lines.map(([value, wide]) =>
      [Math.round(Math.log2(value)), Math.max(wide * unit, TABLES.MIN_LINE_PX) / 2]));
    const [first, last] = [Math.min(...halves.keys()), Math.max(...halves.keys())];
    const [line, dark] = [rgbOf(TABLES.LINE_COLOUR), rgbOf(TABLES.CASING_COLOUR)];
    for (let y = 0; y < height; y++) {
      const above = Math.max(y - 1, 0) * width;
      const below = Math.min(y + 1, height - 1) * width;
      for (let x = 0; x < width; x++) {
        const i = y * width + x;
        const nearest = Math.min(Math.max(Math.round(octaves[i]), first), last);
        const gx = octaves[y * width + Math.min(x + 1, width - 1)]
          - octaves[y * width + Math.max(x - 1, 0)];
        const gy = octaves[below + x] - octaves[above + x];
        const away = 2 * Math.abs(octaves[i] - nearest) / Math.sqrt(gx * gx + gy * gy + 1e-8);
        const covered = halves.get(nearest) + 0.5 - away;
        if (covered + seam <= 0) continue;
        const ink = Math.min(Math.max(covered, 0), 1);
        const under = Math.min(covered + seam, 1) * TABLES.CASING_OPACITY * (1 - ink);
        const o = 4 * i;
        for (let k = 0; k < 3; k++)
          out[o + k] = (ink * line[k] + under * dark[k]) / (ink + under) + 0.5;
        out[o + 3] = 255 * (ink + under) + 0.5;
      }
    }
  }

  /** Box of a cell on a canvas: x0, y0, x1, y1. */
  function cellBox(cell, geometry, rows, columns, canvas) {
    const row = Math.floor(cell / columns);
    const column = geometry.flipped ? columns - 1 - (cell % columns) : cell % columns;
    const xScale = canvas.width / geometry.photo_width_px;
    const yScale = canvas.height / geometry.photo_height_px;
    const w = geometry.width_px / columns * xScale;
    const h = geometry.height_px / rows * yScale;
    const x = geometry.left_px * xScale + column * w;
    const y = geometry.top_px * yScale + row * h;
    return [x, y, x + w, y + h];
  }

  /** The cells of a map's peaks, highest first: see peaks in overlay.py. */
  function peaksOf(map) {
    const [rows, columns] = [map.length, map[0].length];
    const enough = Math.max(TABLES.PEAK_MARKED_FROM / (rows * columns), Math.max(...map.flat()) / 2);
    const found = [];
    map.forEach((line, row) => line.forEach((value, column) => {
      if (value < enough) return;
      for (let r = Math.max(row - 1, 0); r <= Math.min(row + 1, rows - 1); r++)
        for (let c = Math.max(column - 1, 0); c <= Math.min(column + 1, columns - 1); c++)
          if (map[r][c] > value) return;
      found.push([value, row * columns + column]);
    }));
    return found.sort((a, b) => b[0] - a[0]).slice(0, 3).map(([, cell]) => cell);
  }

  /** A word's sampled paths and cells, or where it has no cells, its peaks: see overlay.py. */
  function drawMarks(context, { maps, geometry, cells, paths }, index) {
    const { canvas } = context;
    const map = maps[index];
    const boxOf = (cell) => cellBox(cell, geometry, map.length, map[0].length, canvas);
    const centreOf = (cell) => {
      const [x0, y0, x1, y1] = boxOf(cell).map(Math.round);
      return [Math.floor((x0 + x1) / 2), Math.floor((y0 + y1) / 2)];
    };
    const { MARKS_IN_PICTURE: inPicture, MARKS_IN_CELL: inCell, RIMS_IN_MARK: rimsInMark } = TABLES;
    const [left, top, right, bottom] = boxOf(0);
    const unit = Math.min(Math.max(canvas.width, canvas.height) / inPicture,
      Math.min(right - left, bottom - top) / inCell);
    const line = Math.max(1, Math.round(unit)); // of white, with a black rim
    const rim = Math.max(1, Math.floor(line / rimsInMark));

    if (paths) drawPaths(context, paths, index, centreOf, line, rim);
    for (const cell of cells ? [] : peaksOf(map)) { // a cross
      const [x, y] = centreOf(cell);
      const [arm, half] = [3 * line + 1, Math.floor(line / 2)];
      for (const [colour, grown] of [["black", rim], ["white", 0]]) {
        context.fillStyle = colour;
        for (const [wide, high] of [[arm + grown, half + grown], [half + grown, arm + grown]])
          context.fillRect(x - wide, y - high, 2 * wide + 1, 2 * high + 1);
      }
    }
    for (const cell of new Set(cells ? [cells[index]].flat() : [])) {
      const [x0, y0, x1, y1] = boxOf(cell).map(Math.round);
      // White between black lines shows on every colour.
      for (const [colour, grown, thick] of [["black", rim, line + 2 * rim], ["white", 0, line]]) {
        const [x, y] = [x0 - grown, y0 - grown];
        const w = Math.max(x1 + grown - x, 1);
        const h = Math.max(y1 + grown - y, 1);
        context.fillStyle = colour;
        context.fillRect(x, y, w, thick);
        context.fillRect(x, y + h - thick, w, thick);
        context.fillRect(x, y, thick, h);
        context.fillRect(x + w - thick, y, thick, h);
      }
    }
  }

  /** Sampled paths up to a word, from a ring to a dot. */
  function drawPaths(context, paths, index, centreOf, line, rim) {
    const shown = paths.slice(0, TABLES.PATH_COLOURS.length);
    shown.forEach((path, number) => {
      const colour = TABLES.PATH_COLOURS[number];
      const apart = Math.round((number - (shown.length - 1) / 2) * 2 * line);
      const places = path.slice(0, index + 1).map((cell) =>
        centreOf(cell).map((value) => value + apart));
      const stroke = (points, ink, thick) => {
        Object.assign(context, { strokeStyle: ink, lineWidth: thick });
        context.beginPath();
        points.forEach((point) => context.lineTo(...point));
        context.stroke();
      };
      stroke(places.slice(0, -1), colour, 1);
      stroke(places.slice(-2), "black", 2 * line + 2 * rim);
      stroke(places.slice(-2), colour, 2 * line);
      const [start, end] = [places[0], places[index]];
      for (const [place, radius, ink] of [
        [start, 2 * line + 2 * rim, "black"], [start, 2 * line + rim, colour],
        [start, line + rim, "black"], [start, line, "white"],
        [end, 2 * line + rim, "black"], [end, 2 * line, colour],
      ]) {
        context.fillStyle = ink;
        context.beginPath();
        context.arc(...place, radius, 0, 2 * Math.PI);
        context.fill();
      }
    });
  }

  // --- words about maps -------------------------------------------------------------------------

  function share(value) {
    return value > 0 && value < 0.005 ? "<0.01" : value.toFixed(2);
  }

  /** Attention of the highest cell of a map, in multiples of uniform. */
  function peakOf(map) {
    return Math.max(...map.flat()) * map.length * map[0].length;
  }

  /** Where a map is highest on the photo, for those who do not see it. */
  function whereabouts(map, geometry) {
    const peak = peakOf(map);
    if (peak < TABLES.FLAT_BELOW) return "attention spread over the photo";
    const best = map.flat().indexOf(Math.max(...map.flat()));
    const size = { width: 3, height: 3 };
    const [x0, y0, x1, y1] = cellBox(best, geometry, map.length, map[0].length, size);
    const third = (value) => Math.min(Math.max(Math.floor(value), 0), 2);
    const vertical = ["upper", "middle", "lower"][third((y0 + y1) / 2)];
    const horizontal = ["left", "middle", "right"][third((x0 + x1) / 2)];
    const both = vertical === horizontal ? "middle" : `${vertical} ${horizontal}`;
    return `attends most to the ${both}, ${peak.toPrecision(2)} times uniform`;
  }

  /** Whether a caption's confidence is below its model's threshold, where it has both. */
  function isUnsure({ confidence, confidence_threshold: threshold }) {
    return typeof confidence === "number" && confidence < threshold;
  }

  /** What a reader should know first, or "", and whether it is a warning: see caption_note. */
  function noteOf(caption) {
    const { words, maps, confidence, confidence_threshold: threshold } = caption;
    const { log_probs: logProbs, end_log_prob: end } = caption;
    const { notes } = TABLES;
    const parts = [];
    let warning = isUnsure(caption);
    if (typeof confidence === "number") {
      const same = warning && confidence.toFixed(2) === threshold.toFixed(2);
      const digits = (value) => value.toFixed(same ? 3 : 2);
      parts.push((warning ? notes.unsure : notes.confidence).replace("{value}", digits(confidence))
        + (typeof threshold === "number"
          ? notes.below.replace("{threshold}", digits(threshold)) : ""));
    } else if (words.length) {
      const each = typeof end === "number" ? [...logProbs, end] : logProbs;
      const mean = each.reduce((sum, value) => sum + value, 0) / each.length;
      parts.push(notes.score.replace("{value}", mean.toFixed(2)));
    }
    const highest = Math.max(...maps.map(peakOf));
    if (words.length && highest < TABLES.FLAT_BELOW) {
      warning = true;
      parts.push(notes.flat.replace("{value}", highest.toFixed(1)));
    }
    return [parts.join(". "), warning];
  }

  /** The marks on the photo with their meanings: see sign_key in sheet.py. */
  function marksOf({ maps, cells, paths }) {
    const marks = [];
    if (!cells && maps.some((map) => peakOf(map) >= TABLES.PEAK_MARKED_FROM))
      marks.push(["+", TABLES.key.peak]);
    if (cells)
      marks.push(["□", TABLES.key.cell]);
    if (paths)
      marks.push(["○●", TABLES.key.paths.replace("{count}", paths.length)
        .replace("{shown}", Math.min(paths.length, TABLES.PATH_COLOURS.length))]);
    return marks;
  }

  function meanOf(heads) {
    return heads[0].map((row, r) =>
      row.map((_, c) => heads.reduce((sum, map) => sum + map[r][c], 0) / heads.length));
  }

  /** Maps, cells and paths of one layer and head, from 1; null: the last layer, the heads' mean. */
  function ofHead(caption, layer, head) {
    if (!caption.heads || !caption.words.length) return caption;
    const layers = caption.heads[0].length;
    const chosen = (layer || layers) - 1;
    const maps = caption.heads.map((word) => (head ? word[chosen][head - 1] : meanOf(word[chosen])));
    let { cells, paths } = chosen === layers - 1 ? caption : {};
    if (cells && head) cells = cells.map((cell) => (Array.isArray(cell) ? cell[head - 1] : cell));
    const heads = caption.heads[0][chosen].length; // each sample has a path of every head
    if (paths && head) paths = paths.filter((_, number) => number % heads === head - 1);
    return { ...caption, maps, cells, paths };
  }

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  }

  function sign(text, meaning, className = "") {
    return make("span", `cv-key-sign ${className}`, make("b", "", text), meaning);
  }

  function choice(label, names, chosen, changed) {
    const select = make("select", "");
    for (const [value, name] of names) {
      const option = make("option", "", name);
      option.value = value;
      select.append(option);
    }
    select.value = chosen;
    select.addEventListener("change", () => changed(select.value));
    return make("label", "cv-field", make("span", "", label), select);
  }

  async function copyText(text) {
    if (navigator.clipboard) { // only where the page came over TLS or from this machine
      await navigator.clipboard.writeText(text);
      return;
    }
    const field = make("textarea", "", text);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }

  class CaptionViewer {
    constructor(element, { photo, alt, models, display = {} }) {
      if (!models || !models.length) throw new Error("CaptionViewer needs at least one model");
      this.element = element;
      this.models = models;
      this.alt = alt;
      this.display = {
        style: "focus", smooth: true, colourMap: "viridis", opacity: null, threshold: 0,
        layer: null, head: null, ...display,
      };
      this.model = 0;
      this.pinned = this.hovered = null;
      this.bare = false;
      this.timer = this.frame = null;
      this.loaded = false;
      this._build(photo);
      this._choose();
    }

    /** Show a word's map until another is chosen; null shows the photo alone. */
    show(index) {
      this.pinned = index;
      this.hovered = null;
      this._update();
    }

    /** Stop, and empty the element. */
    destroy() {
      this._play(false);
      if (this.frame !== null) cancelAnimationFrame(this.frame);
      this.element.classList.remove("caption-viewer");
      this.element.replaceChildren();
    }

    get shown() {
      return this.hovered === null ? this.pinned : this.hovered;
    }

    // --- the page -------------------------------------------------------------------------------

    _build(source) {
      const number = ++viewers;
      this.image = make("img", "cv-photo");
      this.canvas = make("canvas", "cv-overlay");
      this.canvas.hidden = true;
      this.canvas.setAttribute("aria-hidden", "true"); // the words say it
      this.stage = make("div", "cv-stage", this.image, this.canvas);
      const { photo_width_px: width, photo_height_px: height } = this.models[0].geometry;
      this.stage.style.setProperty("--cv-ratio", String(width / height));
      this.stage.style.aspectRatio = `${width} / ${height}`;
      for (const [kind, bare] of [["pointerdown", true], ["pointerup", false],
        ["pointerleave", false], ["pointercancel", false]])
        this.stage.addEventListener(kind, () => {
          this.bare = bare;
          this._showCanvas();
        });

      this.words = make("div", "cv-words");
      this.words.setAttribute("role", "toolbar");
      this.words.dir = "auto"; // from right to left for Arabic and Hebrew
      this.words.setAttribute("aria-label", "Words of the caption; arrow keys move");
      this.words.addEventListener("keydown", (event) => this._key(event));
      this.note = make("p", "cv-note");
      this.key = make("div", "cv-key");
      this.key.setAttribute("aria-hidden", "true"); // every word says its figures by name
      this.description = make("p", "cv-description");
      this.legend = make("div", "cv-legend");
      this.legend.setAttribute("role", "img");
      this.controls = make("div", "cv-controls");
      this.heads = make("div", "cv-heads");

      const panel = make("div", "cv-panel");
      panel.append(this.words, this.note, this.key, this.description, this.legend);
      if (this.models.length > 1) panel.append(this._modelChoice(number));
      panel.append(this.heads, this._displayChoice());
      this.element.classList.add("caption-viewer");
      this.element.replaceChildren(make("div", "cv-layout", this.stage, panel));
      this.ready = new Promise((resolve, reject) => {
        this.image.addEventListener("load", () => {
          this._sizeCanvas();
          this._update();
          resolve(this);
        });
        this.image.addEventListener("error", () => {
          this.stage.style.aspectRatio = "auto";
          this.stage.replaceChildren(make("p", "cv-note",
            "This browser cannot show this kind of photo. A downloaded PNG, PDF or GIF can."));
          reject(new Error("the photo cannot be shown"));
        });
      });
      this.ready.catch(() => {}); // the page says so; whoever awaits the promise gets it too
      this.image.src = source;
    }

    _modelChoice(number) {
      const group = make("fieldset", "cv-models", make("legend", "", "Model"));
      this.models.forEach((model, index) => {
        const radio = make("input", "");
        radio.type = "radio";
        radio.name = `caption-viewer-${number}`;
        radio.checked = index === 0;
        radio.addEventListener("change", () => {
          this.model = index;
          this.pinned = this.hovered = null;
          this._choose();
        });
        group.append(make("label", "", radio, make("span", "",
          make("b", "", model.name), ` ${model.caption || "(no words)"}`,
          isUnsure(model) ? make("span", "cv-warning", " (unsure)") : "")));
      });
      return group;
    }

    _displayChoice() {
      const set = (name, value) => {
        this.display[name] = value;
        this._choose();
      };
      const cells = make("input", "");
      cells.type = "checkbox";
      cells.checked = !this.display.smooth;
      cells.addEventListener("change", () => set("smooth", !cells.checked));
      this.play = make("button", "cv-play", "Play");
      this.play.type = "button";
      this.play.addEventListener("click", () => this._play(this.timer === null));
      this.opacity = this._range("Strength", 1, 0.01, (v) => `${Math.round(100 * v)} %`, "opacity");
      this.threshold = this._range("Threshold", 2 ** TABLES.OCTAVES * TABLES.SCALE_LOW, 0.1, (v) => `${v} ×`, "threshold");
      this.colours = choice("Colours", TABLES.COLOUR_MAPS.map((name) => [name, name]),
        this.display.colourMap, (v) => set("colourMap", v));
      this.controls.append(
        choice("Show as", Object.entries(STYLES), this.display.style, (v) => {
          this.display.opacity = null;
          set("style", v);
        }),
        this.colours, this.opacity.label, this.threshold.label,
        make("label", "cv-check", cells, make("span", "", "Grid cells as they are")),
      );
      const copy = make("button", "cv-play", "Copy caption");
      copy.type = "button";
      copy.addEventListener("click", async () => {
        await copyText(this.caption.words.length ? this.models[this.model].caption : "");
        copy.textContent = "Copied";
        setTimeout(() => (copy.textContent = "Copy caption"), 1500);
      });
      const display = make("details", "cv-display", make("summary", "", "Display"), this.controls);
      return make("div", "cv-tools", this.play, copy, display);
    }

    _range(name, max, step, format, key) {
      const input = make("input", "");
      const output = make("output", "");
      Object.assign(input, { type: "range", min: 0, max, step });
      const refresh = () => {
        input.value = key === "opacity" ? opacityOf(this.display) : this.display[key];
        output.textContent = format(Number(input.value));
      };
      input.addEventListener("input", () => {
        this.display[key] = Number(input.value);
        refresh();
        this._drawLegend();
        this._update();
      });
      refresh();
      return { refresh, label: make("label", "cv-field", make("span", "", `${name} `, output), input) };
    }

    /** After a change of model, head or display: everything that depends on them. */
    _choose() {
      const { layer, head } = this.display;
      const model = this.models[this.model];
      const count = model.heads && model.words.length ? model.heads[0].length : 0;
      const heads = count ? model.heads[0][0].length : 0;
      if (layer > count) this.display.layer = null;
      if (head > heads) this.display.head = null;
      this.caption = ofHead(model, this.display.layer, this.display.head);
      this.image.alt = this.models.length > 1 || !this.alt ? model.caption : this.alt;
      this.opacity.refresh();
      this.threshold.refresh();
      // What has no effect on this style is not offered: some have their own colours, lines are opaque.
      this.colours.hidden = this.display.style !== "colour";
      this.opacity.label.hidden = this.display.style === "contour";
      this.laid = null;
      this._drawHeads(count, heads);
      this._drawWords();
      this._drawLegend();
      this._update();
    }

    _drawHeads(layers, heads) {
      const key = `${layers} ${heads}`;
      if (this.heads.dataset.key === key) return; // keep the focus of a list that is in use
      this.heads.dataset.key = key;
      this.heads.replaceChildren();
      const numbers = (count) => Array.from({ length: count }, (_, i) => [String(i + 1), String(i + 1)]);
      const set = (name) => (value) => {
        this.display[name] = value === "" ? null : Number(value);
        this._choose();
      };
      if (layers > 1)
        this.heads.append(choice("Layer", [["", "last"], ...numbers(layers)],
          String(this.display.layer || ""), set("layer")));
      if (heads > 1)
        this.heads.append(choice("Head", [["", "mean of all"], ...numbers(heads)],
          String(this.display.head || ""), set("head")));
    }

    _drawWords() {
      const focused = this.buttons ? this.buttons.indexOf(document.activeElement) : -1;
      const { words, log_probs: logProbs, beta, maps, geometry } = this.caption;
      this.buttons = words.map((word, index) => {
        const values = [["p", Math.exp(logProbs[index])]];
        if (beta) values.push(["β", beta[index]]);
        const button = make("button", "cv-word", make("span", "cv-text", word));
        button.type = "button";
        for (const [name, value] of values) {
          const fill = make("span", `cv-fill cv-fill-${name === "p" ? "p" : "gate"}`);
          fill.style.width = `${100 * Math.min(Math.max(value, 0), 1)}%`;
          const bar = make("span", "cv-bar", fill);
          bar.title = `${NAMES[name]} ${share(value)}`;
          button.append(bar);
        }
        const unsure = values[0][1] < TABLES.UNSURE_PROBABILITY;
        button.firstChild.classList.toggle("cv-unsure", unsure);
        const figures = values.map(([name, value]) => `${NAMES[name]} ${share(value)}`).join(", ");
        button.setAttribute("aria-label",
          `${word}${unsure ? " (unsure)" : ""}: ${figures}, ${whereabouts(maps[index], geometry)}`);
        for (const [kind, hovered] of [["pointerenter", index], ["pointerleave", null]])
          button.addEventListener(kind, (event) => {
            if (event.pointerType !== "mouse") return;
            this.hovered = hovered;
            this._update();
          });
        button.addEventListener("focus", () => {
          if (button.matches(":focus-visible")) this.show(index);
        });
        button.addEventListener("click", () => {
          this._play(false);
          this.show(this.pinned === index ? null : index);
        });
        return button;
      });
      this.words.replaceChildren(...this.buttons);
      this.key.replaceChildren(make("span", "", "probability"));
      if (beta) this.key.append(make("span", "cv-key-gate", "gate β"));
      if (this.words.querySelector(".cv-unsure"))
        this.key.append(sign("?", TABLES.key.unsure, "cv-key-unsure"));
      this.key.append(...(words.length ? marksOf(this.caption) : []).map((mark) => sign(...mark)));
      this.key.hidden = !words.length;
      const [note, warning] = noteOf(this.caption);
      this.note.textContent = note;
      this.note.classList.toggle("cv-warning", warning);
      this.note.hidden = !this.note.textContent;
      if (!words.length) this.words.textContent = "(no words)";
      if (focused >= 0 && focused < words.length) this.buttons[focused].focus();
    }

    _drawLegend() {
      const { SCALE_LOW: low, OCTAVES: octaves, SCALE_TICKS: ticks } = TABLES;
      const [width, height] = [512, 24];
      const context = surface(width, height);
      const ramp = context.canvas;
      ramp.className = "cv-ramp";
      const colours = upperColours(this.display);
      const alpha = alphaTable(this.display);
      const photo = this.display.style === "contour" ? TABLES.LEGEND_PLAIN : TABLES.LEGEND_PHOTO;
      const { base } = TABLES.styles[this.display.style];
      const { LIFTED_SLOPE: slope, LIFTED_OFFSET: offset } = TABLES;
      const grey = 0.299 * photo[0] + 0.587 * photo[1] + 0.114 * photo[2];
      const below = { photo, grey: [grey, grey, grey],
        lifted: [0, 0, 0].map(() => slope * grey + offset) }[base];
      for (let x = 0; x < width; x++) {
        const level = Math.round((255 * x) / (width - 1));
        const above = colours ? colours.subarray(3 * level, 3 * level + 3) : photo;
        const mixed = below.map((value, k) => value + (alpha[level] / 255) * (above[k] - value));
        context.fillStyle = `rgb(${mixed.map(Math.round).join(", ")})`;
        context.fillRect(x, 0, 1, height);
      }
      for (const [heat, thick] of linesOf(this.display)) {
        const wide = Math.round(thick * height / 7);
        const left = Math.round((width - 1) * positionOf(heat) - wide / 2);
        for (const [colour, grown] of [[TABLES.CASING_COLOUR, 2], [TABLES.LINE_COLOUR, 0]]) {
          context.fillStyle = colour;
          context.fillRect(left - grown, 0, wide + 2 * grown, height);
        }
      }
      const scale = make("div", "cv-scale");
      for (const [value, label] of ticks) {
        const mark = make("span", "cv-tick", label);
        mark.style.left = `${100 * positionOf(value)}%`;
        scale.append(mark);
      }
      this.legend.replaceChildren(
        make("span", "cv-title", TABLES.key.scale), ramp, scale);
      this.legend.setAttribute("aria-label",
        `Scale: attention from ${low} to ${low * 2 ** octaves} times uniform and more`);
    }

    // --- the photo ------------------------------------------------------------------------------

    _sizeCanvas() {
      const { naturalWidth: width, naturalHeight: height } = this.image;
      const longer = Math.max(width, height);
      const scale = Math.min(Math.max(longer, SHORTEST_SIDE_PX), LONGEST_SIDE_PX) / longer;
      this.canvas.width = Math.max(1, Math.round(width * scale));
      this.canvas.height = Math.max(1, Math.round(height * scale));
      this.context = this.canvas.getContext("2d");
      this.context.imageSmoothingQuality = "high";
      this.loaded = true;
    }

    _update() {
      this.buttons.forEach((button, index) => {
        button.setAttribute("aria-pressed", String(index === this.pinned));
        button.classList.toggle("cv-shown", index === this.shown);
        button.tabIndex = index === (this.pinned === null ? 0 : this.pinned) ? 0 : -1;
      });
      this._describe();
      if (this.frame !== null) return;
      this.frame = requestAnimationFrame(() => {
        this.frame = null;
        this._draw();
      });
    }

    _draw() {
      const index = this.shown;
      if (this.loaded && index !== null) {
        const { maps, geometry } = this.caption;
        const { width, height } = this.canvas;
        const [rows, columns] = [maps[index].length, maps[index][0].length];
        this.laid = this.laid || (this.display.smooth ? [true] : [false, true]).map(
          (smooth) => projection(geometry, rows, columns, width, height, smooth));
        const [heat, smoothHeat = heat] = this.laid.map((laid) => heatOf(maps[index], laid));
        paint(this.context, this.image, heat, smoothHeat, this.display);
        drawMarks(this.context, this.caption, index);
      }
      this.canvas.dataset.word = index === null ? "" : String(index);
      this._showCanvas();
    }

    _showCanvas() {
      this.canvas.hidden = this.bare || !this.loaded || this.shown === null;
    }

    _describe() {
      const { words, log_probs: logProbs, end_log_prob: end, beta, maps, geometry } = this.caption;
      const index = this.shown;
      if (index === null) {
        const total = logProbs.reduce((sum, value) => sum + value, end || 0);
        this.description.textContent = words.length
          ? `${words.length} words, log-probability ${total.toFixed(2).replace("-", "−")}. `
            + "Point at a word, tap it, or use the arrow keys."
          : "The caption has no words, so there is no attention to show.";
        return;
      }
      const parts = [`probability ${share(Math.exp(logProbs[index]))}`];
      if (beta) parts.push(`gate β ${share(beta[index])}`);
      parts.push(whereabouts(maps[index], geometry));
      this.description.replaceChildren(make("b", "", words[index]), ` ${parts.join(" · ")}`);
    }

    // --- hands ----------------------------------------------------------------------------------

    _key(event) {
      const last = this.buttons.length - 1;
      const here = this.pinned === null ? -1 : this.pinned;
      if (event.altKey || event.ctrlKey || event.metaKey || last < 0) return;
      if (event.key === "Escape") {
        this._play(false);
        this.show(null);
        return;
      }
      // The next word stands to the left where the caption runs from right to left.
      const mirrored = getComputedStyle(this.words).direction === "rtl";
      const [forward, back] = mirrored ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
      const next = { [forward]: Math.min(here + 1, last), [back]: Math.max(here - 1, 0),
        Home: 0, End: last }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      this._play(false);
      this.show(next);
      this.buttons[next].focus();
    }

    _play(on) {
      if (this.timer !== null) clearInterval(this.timer);
      this.timer = null;
      this.play.textContent = on ? "Stop" : "Play";
      if (!on || !this.buttons.length) return;
      const step = () => this.show(((this.pinned === null ? -1 : this.pinned) + 1) % this.buttons.length);
      step();
      this.timer = setInterval(step, PLAY_MS);
    }
  }

  window.CaptionViewer = CaptionViewer;
})();
