/* The viewer of captions: a photo, its caption word by word, and where the model looked for each.

   new CaptionViewer(element, {
     photo: URL or data URL of the upright photo, from the page's own origin,
     alt: the caption, which is the photo's text alternative,
     models: [{name, ...Caption.to_dict(maps=True)}, ...],
     look: {style, smooth, colourMap, opacity, threshold, layer, head}   (optional, any of them)
   })

   `viewer.ready` is a promise of the painted photo; `viewer.show(index)` chooses a word, null none.
   A plain script without dependencies, inline handlers or style attributes. The mathematics is
   that of heat.py and overlay.py, and a test holds the pixels of both together. */
(function () {
  "use strict";

  const SIGMA_CELLS = 0.5;
  const FLAT_SCALE = 4; // smallest top of a colour scale, in multiples of uniform attention
  // A photo is painted at its own size, within these limits of its longer side: above the first
  // a phone gets slow, below the second lines get coarse.
  const LONGEST_SIDE_PX = 1600;
  const SHORTEST_SIDE_PX = 640;
  const CONTOURS_AT_MOST = 9;
  const PLAY_MS = 1100;
  const NAMES = { p: "probability", "β": "gate" };
  const TABLES = {
    cividis: decodeTable(
      "00224d00234f00235000245200255400265500265700275900285b00285c00295e002a60002a62002b64002c66002c67" +
      "002d69002e6b002f6d002f6f0030700030700031700031700432700833700b33700e347011356f14366f16366f18376f" +
      "1a386f1c386e1d396e1f3a6e213b6e223b6e243c6e253d6d273d6d283e6d2a3f6d2b3f6d2c406d2e416c2f426c30426c" +
      "31436c32446c34446c35456c36466c37466c38476c39486c3a486b3b496b3d4a6b3e4b6b3f4b6b404c6b414d6b424d6b" +
      "434e6b444f6b454f6b46506b47516b48516b49526b4a536b4b546c4c546c4d556c4e566c4e566c4f576c50586c51586c" +
      "52596c535a6c545a6c555b6d565c6d575d6d585d6d595e6d595f6d5a5f6d5b606e5c616e5d616e5e626e5f636e60646e" +
      "61646f61656f62666f63666f64676f656870666970676970686a70686b71696b716a6c716b6d716c6d726d6e726e6f72" +
      "6e70736f70737071737172737273747373747474757475757575757676767777767878767978777979777a7a777b7b77" +
      "7c7b787d7c787e7d787f7d78807e78817f788280788380788481788582788583788683788784788885788986788a8678" +
      "8b87788c88788d89788e89788f8a77908b77918c77928c77938d77948e77958f77968f779790769891769992769a9376" +
      "9b93769c94769d95759e96759f9675a09775a19874a29974a39a74a49a74a59b73a69c73a79d73a89e73a99e72aa9f72" +
      "aba072aca171ada271aea271afa370b0a470b1a570b2a66fb3a66fb4a76fb5a86eb6a96eb7aa6db8ab6db9ab6dbaac6c" +
      "bbad6cbcae6bbdaf6bbeb06abfb06ac1b169c2b269c3b368c4b468c5b567c6b567c7b666c8b765c9b865cab964cbba64" +
      "ccbb63cdbc62cebc62cfbd61d0be60d2bf60d3c05fd4c15ed5c25ed6c35dd7c35cd8c45bd9c55adac65adbc759dcc858" +
      "dec957dfca56e0cb55e1cc54e2cc53e3cd52e4ce51e5cf50e6d04fe8d14ee9d24dead34cebd44becd54aedd648eed747" +
      "efd846f1d944f2da43f3da42f4db40f5dc3ff6dd3df8de3bf9df3afae038fbe136fde234fde333fde534fde636fde737"
    ),
    viridis: decodeTable(
      "44015444025544035745055845065a45085b46095c460b5e460c5f460e61470f62471163471265471466471567471669" +
      "47186a48196b481a6c481c6e481d6f481e70482071482172482273482374472575472676472777472878472a79472b7a" +
      "472c7b462d7c462f7c46307d46317e45327f45347f453580453681443781443982433a83433b83433c84423d84423e85" +
      "4240854141864142864043874044873f45873f47883e48883e49893d4a893d4b893d4c893c4d8a3c4e8a3b508a3b518a" +
      "3a528b3a538b39548b39558b38568b38578c37588c37598c365a8c365b8c355c8c355d8c345e8d345f8d33608d33618d" +
      "32628d32638d31648d31658d31668d30678d30688d2f698d2f6a8d2e6b8e2e6c8e2e6d8e2d6e8e2d6f8e2c708e2c718e" +
      "2c728e2b738e2b748e2a758e2a768e2a778e29788e29798e287a8e287a8e287b8e277c8e277d8e277e8e267f8e26808e" +
      "26818e25828e25838d24848d24858d24868d23878d23888d23898d22898d228a8d228b8d218c8d218d8c218e8c208f8c" +
      "20908c20918c1f928c1f938b1f948b1f958b1f968b1e978a1e988a1e998a1e998a1e9a891e9b891e9c891e9d881e9e88" +
      "1e9f881ea0871fa1871fa2861fa38620a48520a58521a68521a78422a78423a88323a98224aa8225ab8126ac8127ad80" +
      "28ae7f29af7f2ab07e2bb17d2cb17d2eb27c2fb37b30b47a32b57a33b67935b77836b87738b97639b9763bba753dbb74" +
      "3ebc7340bd7242be7144be7045bf6f47c06e49c16d4bc26c4dc26b4fc36951c46853c56755c66657c66559c7645bc862" +
      "5ec96160c96062ca5f64cb5d67cc5c69cc5b6bcd596dce5870ce5672cf5574d05477d05279d1517cd24f7ed24e81d34c" +
      "83d34b86d44988d5478bd5468dd64490d64392d74195d73f97d83e9ad83c9dd93a9fd938a2da37a5da35a7db33aadb32" +
      "addc30afdc2eb2dd2cb5dd2bb7dd29bade27bdde26bfdf24c2df22c5df21c7e01fcae01ecde01dcfe11cd2e11bd4e11a" +
      "d7e219dae218dce218dfe318e1e318e4e318e7e419e9e419ece41aeee51bf1e51cf3e51ef6e61ff8e621fae622fde724"
    ),
  };
  const STYLES = { colour: "colours", contour: "contour lines", mask: "dim the rest" };
  let viewers = 0; // names of radio groups have to differ on a page

  function decodeTable(hex) {
    return Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
  }

  // --- heat: see heat.py ------------------------------------------------------------------------

  function erf(x) {
    // Chebyshev fit of Numerical Recipes (section 6.2), fractional error below 1.2e-7.
    const t = 1 / (1 + 0.5 * Math.abs(x));
    const fit = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807,
      -1.13520398, 1.48851587, -0.82215223, 0.17087277];
    const tail = t * Math.exp(-x * x + fit.reduceRight((sum, c) => sum * t + c, 0));
    return x >= 0 ? 1 - tail : tail - 1;
  }

  /** Share of each cell of one side in each drawn pixel, [drawn][cells] in one array. */
  function sideWeights(drawn, photo, start, length, cells, smooth) {
    const weights = new Float64Array(drawn * cells);
    const reach = Math.ceil(4 * SIGMA_CELLS);
    const cdf = (value) => 0.5 + 0.5 * erf(value / Math.SQRT2);
    for (let pixel = 0; pixel < drawn; pixel++) {
      const position = ((pixel + 0.5) * (photo / drawn) - start) * (cells / length);
      if (position < 0 || position >= cells) continue;
      const row = pixel * cells;
      if (!smooth) {
        weights[row + Math.floor(position)] = 1;
        continue;
      }
      let total = 0;
      let before = cdf((-reach - position) / SIGMA_CELLS);
      for (let edge = -reach; edge < cells + reach; edge++) {
        const after = cdf((edge + 1 - position) / SIGMA_CELLS);
        const mirrored = ((edge % (2 * cells)) + 2 * cells) % (2 * cells);
        weights[row + Math.min(mirrored, 2 * cells - 1 - mirrored)] += after - before;
        total += after - before;
        before = after;
      }
      for (let cell = 0; cell < cells; cell++) weights[row + cell] /= total;
    }
    return weights;
  }

  /** What lays every map of one grid and geometry on a picture of width x height pixels. */
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

  function colourScale(maps, geometry, smooth) {
    let top = FLAT_SCALE;
    if (!maps.length) return top;
    const rows = maps[0].length;
    const columns = maps[0][0].length;
    const laid = projection(geometry, rows, columns, 9 * columns, 9 * rows, smooth);
    for (const map of maps) for (const value of heatOf(map, laid)) top = Math.max(top, value);
    return top;
  }

  function ticks(vmax, atMost) {
    const power = 10 ** Math.floor(Math.log10(vmax / atMost));
    const count = (step) => Math.floor(vmax / step + 1e-9) + 1;
    const step = [1, 2, 5, 10, 20, 50].map((f) => f * power).find((s) => count(s) <= atMost);
    return Array.from({ length: count(step) }, (_, i) => Number((i * step).toPrecision(6)));
  }

  // --- paint: see overlay.py --------------------------------------------------------------------

  function levelOf(heat, vmax) {
    return Math.min(Math.max((heat * 255) / vmax + 0.5, 0), 255) | 0;
  }

  /** Paint heat over photo {rgb, grey} into the RGBA array `out`. */
  function paint(out, photo, heat, width, height, vmax, look) {
    const table = TABLES[look.colourMap];
    if (look.style === "contour") {
      paintContours(out, photo.rgb, heat, width, height, vmax, look, table);
      return;
    }
    for (let i = 0, o = 0; i < heat.length; i++, o += 4) {
      const level = heat[i] < look.threshold ? 0 : levelOf(heat[i], vmax);
      if (look.style === "mask") {
        const kept = 1 - look.opacity * (1 - level / 255);
        for (let k = 0; k < 3; k++) out[o + k] = (photo.rgb[o + k] * kept + 0.5) | 0;
      } else {
        const grey = photo.grey[i];
        const share = heat[i] < look.threshold ? 0 : look.opacity;
        for (let k = 0; k < 3; k++) out[o + k] = (grey + share * (table[3 * level + k] - grey)) | 0;
      }
      out[o + 3] = 255;
    }
  }

  function paintContours(out, rgb, heat, width, height, vmax, look, table) {
    const values = ticks(vmax, CONTOURS_AT_MOST);
    const step = values[1];
    const half = Math.max(1, Math.max(width, height) / 400);
    for (let y = 0; y < height; y++) {
      const above = Math.max(y - 1, 0) * width;
      const below = Math.min(y + 1, height - 1) * width;
      for (let x = 0; x < width; x++) {
        const i = y * width + x;
        const o = 4 * i;
        const gx = (heat[y * width + Math.min(x + 1, width - 1)]
          - heat[y * width + Math.max(x - 1, 0)]) / 2;
        const gy = (heat[below + x] - heat[above + x]) / 2;
        const nearest = Math.min(Math.max(Math.round(heat[i] / step), 1), values.length - 1) * step;
        const slope = Math.hypot(gx, gy);
        const away = slope > 0 ? Math.abs(heat[i] - nearest) / slope : Infinity;
        const drawn = nearest >= look.threshold;
        const ink = drawn ? Math.min(Math.max(half + 0.5 - away, 0), 1) : 0;
        const halo = drawn ? 0.7 * Math.min(Math.max(2 * half + 0.5 - away, 0), 1) : 0;
        const level = levelOf(nearest, vmax);
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

  function outlineCells(context, canvas, cells, geometry, rows, columns) {
    const line = Math.max(1, Math.round(Math.max(canvas.width, canvas.height) / 200));
    for (const cell of new Set([].concat(cells))) {
      const [x0, y0, x1, y1] = cellBox(cell, geometry, rows, columns, canvas).map(Math.round);
      // White between black lines shows on every colour.
      for (const [colour, grown, thick] of [["black", 1, line + 2], ["white", 0, line]]) {
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

  function markPaths(context, canvas, paths, index, geometry, rows, columns) {
    const unit = Math.max(canvas.width, canvas.height) / 200;
    const centre = (cell) => {
      const [x0, y0, x1, y1] = cellBox(cell, geometry, rows, columns, canvas);
      return [(x0 + x1) / 2, (y0 + y1) / 2];
    };
    context.lineWidth = Math.max(1, Math.round(unit / 2));
    context.strokeStyle = "white";
    if (index > 0) {
      for (const step of new Set(paths.map((path) => `${path[index - 1]} ${path[index]}`))) {
        const [before, now] = step.split(" ").map(Number);
        context.beginPath();
        context.moveTo(...centre(before));
        context.lineTo(...centre(now));
        context.stroke();
      }
    }
    const counts = new Map();
    for (const path of paths) counts.set(path[index], (counts.get(path[index]) || 0) + 1);
    context.fillStyle = "white";
    context.strokeStyle = "black";
    for (const [cell, count] of counts) {
      context.beginPath();
      const radius = unit * (1.5 + 3.5 * Math.sqrt(count / paths.length));
      context.arc(...centre(cell), radius, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
    }
  }

  // --- words about maps -------------------------------------------------------------------------

  function share(value) {
    return value > 0 && value < 0.005 ? "<0.01" : value.toFixed(2);
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
    if (peak < 2) return "looks all over the photo";
    const size = { width: 3, height: 3 };
    const [x0, y0, x1, y1] = cellBox(best, geometry, rows, columns, size);
    const third = (value) => Math.min(Math.max(Math.floor(value), 0), 2);
    const vertical = ["upper", "middle", "lower"][third((y0 + y1) / 2)];
    const horizontal = ["left", "middle", "right"][third((x0 + x1) / 2)];
    const both = vertical === horizontal ? "middle" : `${vertical} ${horizontal}`;
    return `looks most at the ${both}, ${peak.toPrecision(2)} times uniform`;
  }

  function meanOf(heads) {
    return heads[0].map((row, r) =>
      row.map((_, c) => heads.reduce((sum, map) => sum + map[r][c], 0) / heads.length));
  }

  /** Maps and cells of one layer and head, from 1; layer null is the last, head null the mean. */
  function ofHead(caption, layer, head) {
    if (!caption.heads || !caption.words.length) return caption;
    const layers = caption.heads[0].length;
    const chosen = (layer || layers) - 1;
    const maps = caption.heads.map((word) => (head ? word[chosen][head - 1] : meanOf(word[chosen])));
    let cells = chosen === layers - 1 ? caption.cells : null;
    if (cells && head) cells = cells.map((cell) => (Array.isArray(cell) ? cell[head - 1] : cell));
    return { ...caption, maps, cells };
  }

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
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
    constructor(element, { photo, alt, models, look = {} }) {
      if (!models || !models.length) throw new Error("CaptionViewer needs at least one model");
      this.element = element;
      this.models = models;
      this.alt = alt;
      this.look = {
        style: "colour", smooth: true, colourMap: "cividis", opacity: 0.65, threshold: 0,
        layer: null, head: null, ...look,
      };
      this.model = 0;
      this.pinned = this.hovered = null;
      this.bare = false;
      this.timer = this.frame = null;
      this.photo = null;
      this._build(photo);
      this._choose();
    }

    /** Show a word's map until told otherwise; null shows the photo alone. */
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
      this.words.setAttribute("aria-label", "Words of the caption; arrow keys move");
      this.words.addEventListener("keydown", (event) => this._key(event));
      this.key = make("div", "cv-key");
      this.key.setAttribute("aria-hidden", "true"); // every word says its figures by name
      this.readout = make("p", "cv-readout");
      this.legend = make("div", "cv-legend");
      this.legend.setAttribute("role", "img");
      this.controls = make("div", "cv-controls");
      this.heads = make("div", "cv-heads");

      const panel = make("div", "cv-panel");
      panel.append(this.words, this.key, this.readout, this.legend);
      if (this.models.length > 1) panel.append(this._modelChoice(number));
      panel.append(this.heads, this._lookChoice());
      this.element.classList.add("caption-viewer");
      this.element.replaceChildren(make("div", "cv-layout", this.stage, panel));
      this.ready = new Promise((resolve, reject) => {
        this.image.addEventListener("load", () => {
          this._readPhoto();
          this._update();
          resolve(this);
        });
        this.image.addEventListener("error", () => {
          this.readout.textContent = "The photo cannot be shown.";
          reject(new Error("the photo cannot be shown"));
        });
      });
      this.ready.catch(() => {}); // it is told of in the page; whoever awaits it hears it too
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
          make("b", "", model.name), ` ${model.caption || "(no words)"}`)));
      });
      return group;
    }

    _lookChoice() {
      const set = (name, value) => {
        this.look[name] = value;
        this._choose();
      };
      const cells = make("input", "");
      cells.type = "checkbox";
      cells.checked = !this.look.smooth;
      cells.addEventListener("change", () => set("smooth", !cells.checked));
      this.play = make("button", "cv-play", "Play");
      this.play.type = "button";
      this.play.addEventListener("click", () => this._play(this.timer === null));
      this.opacity = this._range("Opacity", 1, 0.05, (v) => `${Math.round(100 * v)} %`, "opacity");
      this.threshold = this._range("Threshold", FLAT_SCALE, 0.1, (v) => `${v} ×`, "threshold");
      this.controls.append(
        choice("Show as", Object.entries(STYLES), this.look.style, (v) => set("style", v)),
        choice("Colours", Object.keys(TABLES).map((name) => [name, name]), this.look.colourMap,
          (v) => set("colourMap", v)),
        this.opacity.label, this.threshold.label,
        make("label", "cv-check", cells, make("span", "", "Grid cells as they are")),
      );
      const look = make("details", "cv-look", make("summary", "", "Look"), this.controls);
      return make("div", "cv-tools", this.play, look);
    }

    _range(name, max, step, format, key) {
      const input = make("input", "");
      const output = make("output", "");
      Object.assign(input, { type: "range", min: 0, max, step });
      input.value = this.look[key];
      const tell = () => {
        output.textContent = format(Number(input.value));
      };
      input.addEventListener("input", () => {
        this.look[key] = Number(input.value);
        tell();
        this._drawLegend();
        this._update();
      });
      tell();
      return { input, label: make("label", "cv-field", make("span", "", `${name} `, output), input) };
    }

    /** After a change of model, head or look: everything that depends on them. */
    _choose() {
      const { layer, head } = this.look;
      const model = this.models[this.model];
      const count = model.heads && model.words.length ? model.heads[0].length : 0;
      const heads = count ? model.heads[0][0].length : 0;
      if (layer > count) this.look.layer = null;
      if (head > heads) this.look.head = null;
      this.caption = ofHead(model, this.look.layer, this.look.head);
      this.image.alt = this.models.length > 1 || !this.alt ? model.caption : this.alt;
      const { maps, geometry } = this.caption;
      this.vmax = colourScale(maps, geometry, this.look.smooth);
      this.threshold.input.max = Math.ceil(10 * this.vmax) / 10;
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
        this.look[name] = value === "" ? null : Number(value);
        this._choose();
      };
      if (layers > 1)
        this.heads.append(choice("Layer", [["", "last"], ...numbers(layers)],
          String(this.look.layer || ""), set("layer")));
      if (heads > 1)
        this.heads.append(choice("Head", [["", "mean of all"], ...numbers(heads)],
          String(this.look.head || ""), set("head")));
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
        const told = values.map(([name, value]) => `${NAMES[name]} ${share(value)}`).join(", ");
        button.setAttribute("aria-label", `${word}: ${told}, ${whereabouts(maps[index], geometry)}`);
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
      this.key.hidden = !words.length;
      if (!words.length) this.words.textContent = "(no words)";
      if (focused >= 0 && focused < words.length) this.buttons[focused].focus();
    }

    _drawLegend() {
      const ramp = make("canvas", "cv-ramp");
      Object.assign(ramp, { width: 256, height: 1 });
      const context = ramp.getContext("2d");
      const pixels = context.createImageData(256, 1);
      const table = TABLES[this.look.colourMap];
      const lines = ticks(this.vmax, CONTOURS_AT_MOST).slice(1).map((v) => (255 * v) / this.vmax);
      const contours = this.look.style === "contour"; // the lines, and nothing between them
      for (let level = 0; level < 256; level++) {
        const cut = (level / 255) * this.vmax < this.look.threshold
          || (contours && !lines.some((line) => Math.abs(level - line) <= 2));
        const grey = Math.round(255 * (1 - this.look.opacity * (1 - (cut ? 0 : level) / 255)));
        for (let k = 0; k < 3; k++)
          pixels.data[4 * level + k] = this.look.style === "mask" ? grey : table[3 * level + k];
        pixels.data[4 * level + 3] = cut && this.look.style !== "mask" ? 40 : 255;
      }
      context.putImageData(pixels, 0, 0);
      const scale = make("div", "cv-scale");
      for (const tick of ticks(this.vmax, 6)) {
        const mark = make("span", "cv-tick", String(tick));
        mark.style.left = `${(100 * tick) / this.vmax}%`;
        scale.append(mark);
      }
      this.legend.replaceChildren(make("span", "cv-title", "attention, × uniform"), ramp, scale);
      this.legend.setAttribute("aria-label",
        `Colour scale: attention from 0 to ${this.vmax.toPrecision(3)} times uniform`);
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
      this._tell();
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
          || projection(geometry, rows, columns, width, height, this.look.smooth);
        const heat = heatOf(maps[index], this.laid);
        paint(this.pixels.data, this.photo, heat, width, height, this.vmax, this.look);
        this.context.putImageData(this.pixels, 0, 0);
        if (paths) markPaths(this.context, this.canvas, paths, index, geometry, rows, columns);
        if (cells) outlineCells(this.context, this.canvas, cells[index], geometry, rows, columns);
      }
      this.canvas.dataset.word = index === null ? "" : String(index);
      this._showCanvas();
    }

    _showCanvas() {
      this.canvas.hidden = this.bare || !this.photo || this.shown === null;
    }

    _tell() {
      const { words, log_probs: logProbs, end_log_prob: end, beta, maps, geometry } = this.caption;
      const index = this.shown;
      if (index === null) {
        const total = logProbs.reduce((sum, value) => sum + value, end || 0);
        this.readout.textContent = words.length
          ? `${words.length} words, log-probability ${total.toFixed(2).replace("-", "−")}. `
            + "Point at a word, tap it, or use the arrow keys."
          : "The caption has no words, so there is no attention to show.";
        return;
      }
      const parts = [`probability ${share(Math.exp(logProbs[index]))}`];
      if (beta) parts.push(`gate β ${share(beta[index])}`);
      parts.push(whereabouts(maps[index], geometry));
      this.readout.replaceChildren(make("b", "", words[index]), ` ${parts.join(" · ")}`);
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
      const next = { ArrowRight: Math.min(here + 1, last), ArrowLeft: Math.max(here - 1, 0),
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
