/* The viewer of captions: an image, its caption word by word, and the attention map of each word.

   new CaptionViewer(element, {
     photo: URL or data URL of the upright image, from the page's own origin,
     alt: the caption, which is the image's text alternative,
     models: [{name, ...Caption.to_dict(maps=True)}, ...],
     display: {style, smooth, colourMap, opacity, threshold, layer, head}   (optional, any of them)
   })

   `viewer.ready` is a promise of the painted image; `viewer.show(index)` chooses a word, null none.
   A plain script without dependencies, inline handlers or style attributes. Colours, brightness,
   scale and the profile of a smoothed cell are tables that Python computes (style.py) and
   `viewer_script` puts in front of this file; a test compares the pixels of both. */
(function () {
  "use strict";

  const TABLES = window.captionViewerTables;
  // An image is painted at its own size, within these limits of its longer side: above the first
  // a phone gets slow, below the second lines get coarse.
  const LONGEST_SIDE_PX = 1600;
  const SHORTEST_SIDE_PX = 640;
  const MOST_LINES = TABLES.mostLines;
  const PLAY_MS = 1100;
  const NAMES = { p: "probability", "β": "gate" };
  const STYLES = {
    light: "light", colour: "colours", contour: "contour lines", mask: "dim the rest",
  };
  const COLOURS = Object.fromEntries(
    Object.entries(TABLES.colours).map(([name, hex]) => [name, decodeTable(hex)]),
  );
  const EFFECTS = Object.fromEntries(
    Object.entries(TABLES.styles).filter(([, style]) => style.factor).map(([name, style]) =>
      [name, { factor: decodeTable(style.factor), offset: decodeTable(style.offset) }]),
  );
  let viewers = 0; // names of radio groups have to differ on a page

  function decodeTable(hex) {
    return Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
  }

  // --- attention over pixels: see heat.py -------------------------------------------------------

  /** How much of a cell's attention reaches a point at this distance (in cells) to its centre. */
  function cellProfile(distance) {
    const { steps, profile } = TABLES.cell;
    const at = Math.abs(distance) * steps;
    const index = Math.floor(at);
    if (index >= profile.length - 1) return 0;
    return profile[index] + (at - index) * (profile[index + 1] - profile[index]);
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
      let total = 0;
      for (let cell = here - 3; cell <= here + 3; cell++) {
        const share = cellProfile(position - cell - 0.5);
        const mirrored = ((cell % (2 * cells)) + 2 * cells) % (2 * cells);
        weights[row + Math.min(mirrored, 2 * cells - 1 - mirrored)] += share;
        total += share;
      }
      for (let cell = 0; cell < cells; cell++) weights[row + cell] /= total;
    }
    return weights;
  }

  /** Weights that lay every map of one grid and geometry on width x height pixels. */
  function projection(geometry, rows, columns, width, height, smooth) {
    const g = geometry;
    let across = sideWeights(width, g.photo_width_px, g.left_px, g.width_px, columns, smooth);
    const down = sideWeights(height, g.photo_height_px, g.top_px, g.height_px, rows, smooth);
    if (g.flipped) {
      const mirrored = new Float64Array(across.length);
      for (let x = 0; x < width; x++)
        for (let c = 0; c < columns; c++)
          mirrored[x * columns + c] = across[x * columns + columns - 1 - c];
      across = mirrored;
    }
    // Most shares are 0: remember where those that are not begin and end.
    const first = new Int32Array(width);
    const end = new Int32Array(width);
    for (let x = 0; x < width; x++) {
      let from = 0;
      let to = columns;
      while (to > 0 && across[x * columns + to - 1] < 1e-9) to--;
      while (from < to && across[x * columns + from] < 1e-9) from++;
      first[x] = from;
      end[x] = to;
    }
    return { rows, columns, width, height, across, down, first, end };
  }

  /** Heat [height][width] of a map [rows][columns], in multiples of uniform attention. */
  function heatOf(map, laid) {
    const { rows, columns, width, height, across, down, first, end } = laid;
    const heat = new Float32Array(width * height);
    const line = new Float64Array(columns);
    for (let y = 0; y < height; y++) {
      line.fill(0);
      for (let r = 0; r < rows; r++) {
        const share = down[y * rows + r] * rows * columns;
        if (share > 0) for (let c = 0; c < columns; c++) line[c] += share * map[r][c];
      }
      for (let x = 0; x < width; x++) {
        let sum = 0;
        for (let c = first[x]; c < end[x]; c++) sum += line[c] * across[x * columns + c];
        heat[y * width + x] = sum;
      }
    }
    return heat;
  }

  // --- paint: see overlay.py --------------------------------------------------------------------

  /** Where an attention stands on the scale, 0 to 1. */
  function positionOf(heat) {
    const { low, octaves } = TABLES.scale;
    return Math.min(Math.max(Math.log2(heat / low) / octaves, 0), 1);
  }

  function levelOf(heat) {
    return (positionOf(heat) * 255 + 0.5) | 0;
  }

  /** A style as a table: the value of a channel painted, at [channel][level][value]. */
  function paintTable(style, opacity, colourMap) {
    const effect = EFFECTS[style];
    const colours = COLOURS[colourMap];
    const table = new Uint8Array(3 * 256 * 256);
    for (let k = 0; k < 3; k++)
      for (let level = 0; level < 256; level++) {
        const at = 3 * level + k;
        const factor = effect ? effect.factor[at] / 255 : 0;
        const offset = effect ? effect.offset[at] : colours[at];
        for (let value = 0; value < 256; value++)
          table[(k << 16) | (level << 8) | value]
            = value * (1 - opacity * (1 - factor)) + opacity * offset + 0.5;
      }
    return table;
  }

  function opacityOf(display) {
    return display.opacity === null ? TABLES.styles[display.style].opacity : display.opacity;
  }

  /** Paint heat over photo {rgb, grey} into the RGBA array `out`. */
  function paint(out, photo, heat, width, height, display) {
    if (display.style === "contour") {
      paintContours(out, photo.rgb, heat, width, height, display);
      return;
    }
    const table = paintTable(display.style, opacityOf(display), display.colourMap);
    const colour = display.style === "colour";
    for (let i = 0, o = 0; i < heat.length; i++, o += 4) {
      const below = heat[i] < display.threshold;
      const level = below ? 0 : levelOf(heat[i]);
      for (let k = 0; k < 3; k++) {
        const value = colour ? photo.grey[i] : photo.rgb[o + k];
        out[o + k] = colour && below ? value : table[(k << 16) | (level << 8) | value];
      }
      out[o + 3] = 255;
    }
  }

  /** Lines in the colour of their level, light ones on a dark border and dark on a light. */
  function paintContours(out, rgb, heat, width, height, display) {
    const table = COLOURS[display.colourMap];
    const first = Math.log2(TABLES.contours[0]);
    const last = Math.log2(TABLES.contours[TABLES.contours.length - 1]);
    const octaves = heat.map((value) => Math.log2(Math.max(value, TABLES.scale.low / 4)));
    const [shorter, longer] = [Math.min(width, height), Math.max(width, height)];
    const half = Math.max(1, Math.min(longer / 400, shorter / 100));
    for (let y = 0; y < height; y++) {
      const above = Math.max(y - 1, 0) * width;
      const below = Math.min(y + 1, height - 1) * width;
      for (let x = 0; x < width; x++) {
        const i = y * width + x;
        const o = 4 * i;
        const gx = (octaves[y * width + Math.min(x + 1, width - 1)]
          - octaves[y * width + Math.max(x - 1, 0)]) / 2;
        const gy = (octaves[below + x] - octaves[above + x]) / 2;
        const nearest = Math.min(Math.max(Math.round(octaves[i]), first), last);
        const slope = Math.hypot(gx, gy);
        const away = slope > 0 ? Math.abs(octaves[i] - nearest) / slope : Infinity;
        const drawn = 2 ** nearest >= display.threshold;
        const ink = drawn ? Math.min(Math.max(half + 0.5 - away, 0), 1) : 0;
        const halo = drawn ? 0.7 * Math.min(Math.max(2 * half + 0.5 - away, 0), 1) : 0;
        const level = levelOf(2 ** nearest);
        const around = level < 128 ? 255 : 0;
        for (let k = 0; k < 3; k++) {
          const under = rgb[o + k] + halo * (around - rgb[o + k]);
          out[o + k] = (under + ink * (table[3 * level + k] - under) + 0.5) | 0;
        }
        out[o + 3] = 255;
      }
    }
  }

  function cellBox(cell, geometry, rows, columns, canvas) {
    const row = Math.floor(cell / columns);
    const column = geometry.flipped ? columns - 1 - (cell % columns) : cell % columns;
    const w = geometry.width_px / columns;
    const h = geometry.height_px / rows;
    const xScale = canvas.width / geometry.photo_width_px;
    const yScale = canvas.height / geometry.photo_height_px;
    const x = geometry.left_px + column * w;
    const y = geometry.top_px + row * h;
    return [x * xScale, y * yScale, (x + w) * xScale, (y + h) * yScale];
  }

  /** The width of a mark's line, not rounded: in step with the picture, thin beside a cell. */
  function lineUnit(geometry, rows, columns, canvas) {
    const { inPicture, inCell } = TABLES.marks;
    const cell = Math.min(
      geometry.width_px / columns * canvas.width / geometry.photo_width_px,
      geometry.height_px / rows * canvas.height / geometry.photo_height_px,
    );
    return Math.min(Math.max(canvas.width, canvas.height) / inPicture, cell / inCell);
  }

  /** The widths of a mark's white line and of its black rim. */
  function linePx(geometry, rows, columns, canvas) {
    const line = Math.max(1, Math.round(lineUnit(geometry, rows, columns, canvas)));
    return [line, Math.max(1, Math.floor(line / TABLES.marks.rimsInLine))];
  }

  function outlineCells(context, canvas, cells, geometry, rows, columns) {
    const [line, rim] = linePx(geometry, rows, columns, canvas);
    for (const cell of new Set([].concat(cells))) {
      const [x0, y0, x1, y1] = cellBox(cell, geometry, rows, columns, canvas).map(Math.round);
      // White between black lines shows on every colour.
      for (const [colour, grown, thick] of [["black", rim, line + 2 * rim], ["white", 0, line]]) {
        const left = x0 - grown;
        const top = y0 - grown;
        const w = Math.max(x1 + grown - left, 1);
        const h = Math.max(y1 + grown - top, 1);
        context.fillStyle = colour;
        context.fillRect(left, top, w, thick);
        context.fillRect(left, top + h - thick, w, thick);
        context.fillRect(left, top, thick, h);
        context.fillRect(left + w - thick, top, thick, h);
      }
    }
  }

  /** The four corners of the cell that a word attends to most. */
  function markPeak(context, canvas, map, geometry) {
    const [rows, columns] = [map.length, map[0].length];
    const flat = map.flat();
    const cell = flat.indexOf(Math.max(...flat));
    const [x0, y0, x1, y1] = cellBox(cell, geometry, rows, columns, canvas).map(Math.round);
    const [line, rim] = linePx(geometry, rows, columns, canvas);
    const arms = [x1 - x0, y1 - y0].map((side) => Math.max(line, Math.round(0.3 * side)));
    for (const [colour, grown] of [["black", rim], ["white", 0]]) {
      context.fillStyle = colour;
      for (const [wide, high] of [[arms[0], line], [line, arms[1]]])
        for (const x of [x0, x1 - wide])
          for (const y of [y0, y1 - high])
            context.fillRect(x - grown, y - grown, wide + 2 * grown, high + 2 * grown);
    }
  }

  /** The most frequent steps of sampled paths to a word: [cell before, cell, count], as Python. */
  function frequentSteps(paths, index) {
    const steps = new Map();
    for (const path of paths) {
      const [start, end] = [path[Math.max(0, index - 1)], path[index]];
      const key = `${start} ${end}`;
      steps.set(key, [start, end, (steps.get(key) || [0, 0, 0])[2] + 1]);
    }
    const sorted = [...steps.values()].sort((a, b) => b[2] - a[2] || a[0] - b[0] || a[1] - b[1]);
    return sorted.slice(0, MOST_LINES);
  }

  /** Lines from rings (cells of the word before) to dots (cells of this word). */
  function drawPaths(context, canvas, paths, index, geometry, rows, columns) {
    const unit = lineUnit(geometry, rows, columns, canvas);
    const casing = Math.max(1, Math.round(unit / 2));
    const centre = (cell) => {
      const [x0, y0, x1, y1] = cellBox(cell, geometry, rows, columns, canvas).map(Math.round);
      return [(x0 + x1) / 2, (y0 + y1) / 2];
    };
    const circle = (cell, radius) => {
      context.beginPath();
      context.arc(...centre(cell), Math.max(radius - casing / 2, 0), 0, 2 * Math.PI);
    };
    const steps = frequentSteps(paths, index);
    for (const [colour, grown] of [["black", 2 * casing], ["white", 0]])
      for (const [start, end, count] of steps) {
        if (start === end) continue;
        context.strokeStyle = colour;
        context.lineWidth
          = Math.max(1, Math.round(unit * (0.4 + (2.6 * count) / steps[0][2]))) + grown;
        context.beginPath();
        context.moveTo(...centre(start));
        context.lineTo(...centre(end));
        context.stroke();
      }
    context.lineWidth = casing;
    const ring = 3.5 * unit;
    for (const [start] of steps)
      for (const [colour, radius] of [["black", ring + casing], ["white", ring],
        ["black", ring - casing]]) {
        context.strokeStyle = colour;
        circle(start, radius);
        context.stroke();
      }
    const ends = new Map();
    for (const [, end, count] of steps) ends.set(end, (ends.get(end) || 0) + count);
    const most = Math.max(...ends.values());
    context.fillStyle = "white";
    context.strokeStyle = "black";
    for (const [end, count] of ends) {
      circle(end, unit * (1.5 + (1.5 * count) / most));
      context.fill();
      context.stroke();
    }
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
    const rows = map.length;
    const columns = map[0].length;
    let best = 0;
    for (let i = 1; i < rows * columns; i++)
      if (map[Math.floor(i / columns)][i % columns] > map[Math.floor(best / columns)][best % columns])
        best = i;
    const peak = map[Math.floor(best / columns)][best % columns] * rows * columns;
    if (peak < TABLES.flatBelow) return "attention spread over the photo";
    const size = { width: 3, height: 3 };
    const [x0, y0, x1, y1] = cellBox(best, geometry, rows, columns, size);
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

  /** What a reader should know first, or "": see caption_note in labels.py. */
  function noteOf(caption) {
    const { words, maps, confidence } = caption;
    const notes = [];
    if (isUnsure(caption))
      notes.push(TABLES.notes.unsure.replace("{value}", confidence.toFixed(2)));
    const highest = Math.max(...maps.map(peakOf));
    if (words.length && highest < TABLES.flatBelow)
      notes.push(TABLES.notes.flat.replace("{value}", highest.toFixed(1)));
    return notes.join(". ");
  }

  /** The marks on the photo with their meanings: see _key in labels.py. */
  function marksOf({ maps, geometry, cells, paths }) {
    const marks = [];
    if (!cells && maps.some((map) => peakOf(map) >= TABLES.peakMarkedFrom))
      marks.push(["⌜⌟", TABLES.key.peak]);
    if (cells) {
      const [rows, columns] = [maps[0].length, maps[0][0].length];
      const visible = (cell) => {
        const [x0, y0, x1, y1] = cellBox(cell, geometry, rows, columns, { width: 1, height: 1 });
        return x1 > 0 && y1 > 0 && x0 < 1 && y0 < 1;
      };
      const all = cells.every((each) => [].concat(each).some(visible));
      marks.push(["□", TABLES.key.cell + (all ? "" : TABLES.key.outside)]);
    }
    if (paths)
      marks.push(["●", TABLES.key.paths.replace("{count}", paths.length)], ["–", TABLES.key.steps]);
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

  class CaptionViewer {
    constructor(element, { photo, alt, models, display = {} }) {
      if (!models || !models.length) throw new Error("CaptionViewer needs at least one model");
      this.element = element;
      this.models = models;
      this.alt = alt;
      this.display = {
        style: "light", smooth: true, colourMap: "viridis", opacity: null, threshold: 0,
        layer: null, head: null, ...display,
      };
      this.model = 0;
      this.pinned = this.hovered = null;
      this.bare = false;
      this.timer = this.frame = null;
      this.photo = null;
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
          this._readPhoto();
          this._update();
          resolve(this);
        });
        this.image.addEventListener("error", () => {
          this.description.textContent = "The photo cannot be shown.";
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
          isUnsure(model) ? make("span", "cv-note", " (unsure)") : "")));
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
      this.threshold = this._range("Threshold", 2 ** TABLES.scale.octaves * TABLES.scale.low, 0.1, (v) => `${v} ×`, "threshold");
      this.colours = choice("Colours", Object.keys(COLOURS).map((name) => [name, name]),
        this.display.colourMap, (v) => set("colourMap", v));
      this.controls.append(
        choice("Show as", Object.entries(STYLES), this.display.style, (v) => {
          this.display.opacity = null;
          set("style", v);
        }),
        this.colours, this.opacity.label, this.threshold.label,
        make("label", "cv-check", cells, make("span", "", "Grid cells as they are")),
      );
      const display = make("details", "cv-display", make("summary", "", "Display"), this.controls);
      return make("div", "cv-tools", this.play, display);
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
      this.colours.hidden = this.display.style in EFFECTS;
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
        const unsure = values[0][1] < TABLES.unsureProbability;
        button.firstChild.classList.toggle("cv-unsure", unsure);
        const figures = values.map(([name, value]) => `${NAMES[name]} ${share(value)}`).join(", ");
        button.setAttribute("aria-label",
          `${word}${unsure ? " (unsure)" : ""}: ${figures}, ${whereabouts(maps[index], geometry)}`);
        button.addEventListener("pointerenter", (event) => {
          if (event.pointerType === "mouse") this._hover(index);
        });
        button.addEventListener("pointerleave", (event) => {
          if (event.pointerType === "mouse") this._hover(null);
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
      this.note.textContent = noteOf(this.caption);
      this.note.hidden = !this.note.textContent;
      if (!words.length) this.words.textContent = "(no words)";
      if (focused >= 0 && focused < words.length) this.buttons[focused].focus();
    }

    _drawLegend() {
      const { style, threshold, colourMap } = this.display;
      const { low, octaves, ticks } = TABLES.scale;
      const ramp = make("canvas", "cv-ramp");
      Object.assign(ramp, { width: 256, height: 1 });
      const context = ramp.getContext("2d");
      const pixels = context.createImageData(256, 1);
      const lines = TABLES.contours.filter((line) => line >= threshold);
      const table = EFFECTS[style] ? paintTable(style, opacityOf(this.display), colourMap) : null;
      for (let level = 0; level < 256; level++) {
        const heat = low * 2 ** ((level / 255) * octaves);
        const cut = style === "contour" // the lines, and nothing between them
          ? !lines.some((line) => Math.abs(level - 255 * positionOf(line)) <= 2)
          : heat < threshold * (1 - 1e-9);
        const shown = cut && table ? 0 : level;
        for (let k = 0; k < 3; k++)
          pixels.data[4 * level + k] = table
            ? table[(k << 16) | (shown << 8) | TABLES.legendGrey]
            : COLOURS[colourMap][3 * level + k];
        pixels.data[4 * level + 3] = cut && !table ? 40 : 255;
      }
      context.putImageData(pixels, 0, 0);
      const scale = make("div", "cv-scale");
      for (const [value, label] of ticks) {
        const mark = make("span", "cv-tick", label);
        mark.style.left = `${100 * positionOf(value)}%`;
        scale.append(mark);
      }
      this.legend.replaceChildren(
        make("span", "cv-title", "attention, × uniform (1: evenly spread)"), ramp, scale);
      this.legend.setAttribute("aria-label",
        `Scale: attention from ${low} to ${low * 2 ** octaves} times uniform and more`);
    }

    // --- the photo ------------------------------------------------------------------------------

    _readPhoto() {
      const { naturalWidth: width, naturalHeight: height } = this.image;
      const longer = Math.max(width, height);
      const scale = Math.min(Math.max(longer, SHORTEST_SIDE_PX), LONGEST_SIDE_PX) / longer;
      this.canvas.width = Math.max(1, Math.round(width * scale));
      this.canvas.height = Math.max(1, Math.round(height * scale));
      this.context = this.canvas.getContext("2d", { willReadFrequently: true });
      this.context.imageSmoothingQuality = "high";
      this.context.drawImage(this.image, 0, 0, this.canvas.width, this.canvas.height);
      this.pixels = this.context.getImageData(0, 0, this.canvas.width, this.canvas.height);
      const rgb = this.pixels.data.slice();
      const grey = new Uint8Array(rgb.length / 4);
      for (let i = 0, o = 0; i < grey.length; i++, o += 4) // as Pillow does it: ITU-R 601-2
        grey[i] = (rgb[o] * 19595 + rgb[o + 1] * 38470 + rgb[o + 2] * 7471 + 0x8000) >> 16;
      this.photo = { rgb, grey };
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
      if (this.photo && index !== null) {
        const { maps, geometry, cells, paths } = this.caption;
        const { width, height } = this.canvas;
        const [rows, columns] = [maps[index].length, maps[index][0].length];
        this.laid = this.laid
          || projection(geometry, rows, columns, width, height, this.display.smooth);
        const heat = heatOf(maps[index], this.laid);
        paint(this.pixels.data, this.photo, heat, width, height, this.display);
        this.context.putImageData(this.pixels, 0, 0);
        if (paths) drawPaths(this.context, this.canvas, paths, index, geometry, rows, columns);
        if (!cells && peakOf(maps[index]) >= TABLES.peakMarkedFrom)
          markPeak(this.context, this.canvas, maps[index], geometry);
        if (cells) outlineCells(this.context, this.canvas, cells[index], geometry, rows, columns);
      }
      this.canvas.dataset.word = index === null ? "" : String(index);
      this._showCanvas();
    }

    _showCanvas() {
      this.canvas.hidden = this.bare || !this.photo || this.shown === null;
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

    _hover(index) {
      this.hovered = index;
      this._update();
    }

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
