'use strict';
// The page: one moment at a time from the engine (travel.js stands before this), drawn.

const $ = (id) => document.getElementById(id);
const LANES = 8; // caches in the overview
const SAMPLES = 480; // points of the time line
const SPEEDS = [1, 10, 100, 1000, 10000, 100000]; // operations a second
const grouped = (n) => Math.round(n).toLocaleString('en-US');

const state = {
  engine: null, travel: null, about: null,
  samples: [], // of the time line: { at, values }
  lanes: [], chosen: 0, // numbers of caches
  view: null, playing: false, speed: 1000,
};

// --- drawing ---

let colours = {};
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['ink', 'quiet', 'line', 'soft', 'card', 'used', 'cached', 'depot', 'free', 'now', 'slab', 'block', 'percpu'])
    colours[name] = style.getPropertyValue('--' + name).trim();
};

// A canvas of its element's width and so many pixels high, cleared.
function sheet(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.style.height = height + 'px';
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = '11px system-ui, sans-serif';
  g.textBaseline = 'alphabetic';
  return { g, width, height };
}

// A magazine as a column that fills from below.
function column(g, x, y, width, height, [rounds, capacity], colour) {
  g.strokeStyle = capacity ? colours.quiet : colours.line;
  g.lineWidth = 1;
  g.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  if (!capacity) return;
  const fill = (height - 2) * rounds / capacity;
  g.fillStyle = colour;
  g.fillRect(x + 1, y + height - 1 - fill, width - 2, fill);
}

// Small squares, one a magazine: full ones filled. Returns how many went in.
function squares(g, x, y, perColumn, size, full, empty, colour) {
  for (let i = 0; i < full + empty; i++) {
    const left = x + Math.floor(i / perColumn) * (size + 2);
    const top = y + (i % perColumn) * (size + 2);
    if (i < full) { g.fillStyle = colour; g.fillRect(left, top, size, size); }
    else { g.strokeStyle = colours.free; g.strokeRect(left + 0.5, top + 0.5, size - 1, size - 1); }
  }
}

const LANE = 44;
const sum = (levels, key) => levels.reduce((n, level) => n + level[key], 0);

function drawLaneCpus(canvas, shown, acting) {
  const { g, width } = sheet(canvas, LANE);
  const count = shown.cpus.length;
  const each = width / count;
  shown.cpus.forEach((cpu, number) => {
    const x = number * each;
    if (number === acting) {
      g.fillStyle = colours.now;
      g.fillRect(x, LANE - 2, Math.max(each - 4, 1), 2);
    }
    if (each >= 34) {
      const bar = Math.min(14, each / (2 * cpu.length));
      cpu.forEach((level, i) => column(g, x + i * (bar + 3), 2, bar, LANE - 6, [level.objects, level.room], colours.cached));
    } else column(g, x, 2, Math.max(1, each - (each > 4 ? 2 : 0)), LANE - 6, [sum(cpu, 'objects'), Math.max(1, sum(cpu, 'room'))], colours.cached);
  });
}

function drawLaneDepot(canvas, shown) {
  const { g, width } = sheet(canvas, LANE);
  const full = shown.shared.reduce((n, levels) => n + levels.length, 0);
  const most = Math.max(1, Math.floor(width / 9)) * 4;
  squares(g, 0, 3, 4, 7, Math.min(full, most), 0, colours.depot);
}

const byList = (slabs) => ['full', 'partial', 'empty'].map((list) => [list, slabs.filter((slab) => slab.list === list)]);

const colourOf = (object) => object === 'u' ? colours.used : object === '.' ? null : object === 'd' ? colours.depot : colours.cached;

// One slab as dots, `rows` high. Runs of a colour in a column are one rectangle.
function drawSlab(g, slab, x, y, rows, dot) {
  const gap = dot >= 3 ? 1 : dot > 1.6 ? 0.5 : 0;
  for (let i = 0; i < slab.objects.length; i++) {
    const colour = colourOf(slab.objects[i]) ?? colours.free;
    const left = x + Math.floor(i / rows) * dot, top = y + (i % rows) * dot;
    g.fillStyle = colour;
    if (slab.objects[i] === '.' && dot > 3) {
      g.strokeStyle = colour;
      g.lineWidth = 1;
      g.strokeRect(left + 0.5, top + 0.5, dot - gap - 1, dot - gap - 1);
    } else g.fillRect(left, top, dot - gap, dot - gap);
  }
}

function drawLaneSlabs(canvas, shown, counts) {
  const { g, width } = sheet(canvas, LANE);
  // Slabs of many objects get smaller dots, so that several fit.
  const objects = counts.per_slab;
  const [dot, rows] = objects <= 140 ? [4, 7] : objects <= 300 ? [2.8, 10] : [1.8, 15];
  const tile = (slab) => Math.ceil(slab.objects.length / rows) * dot + 4;
  // Partial slabs tell most, so they get what the others leave of their share.
  const lists = byList(shown.slabs);
  const share = { full: 0.35, partial: 0.5, empty: 0.15 };
  let x = 0;
  lists.forEach(([list, slabs], at) => {
    const wanted = slabs.reduce((n, slab) => n + tile(slab), 0);
    const later = lists.slice(at + 1).reduce((n, [other, more]) =>
      n + Math.max(64, Math.min(more.reduce((m, slab) => m + tile(slab), 0), width * share[other])), 0);
    const room = Math.max(width - x - later - 12, 0);
    g.fillStyle = colours.quiet;
    g.fillText(`${list} ${grouped(counts[list])}`, x, 10);
    let at_x = x;
    for (const slab of slabs) {
      if (at_x + tile(slab) > x + room) break;
      drawSlab(g, slab, at_x, 15, rows, dot);
      at_x += tile(slab);
    }
    x += Math.max(64, Math.min(wanted, room)) + 12;
  });
}

// The chosen cache's slabs, as large as they all fit.
function drawNear(canvas, shown, touched) {
  const lists = byList(shown.slabs);
  const width = canvas.parentElement.clientWidth;
  const most = 360, head = 18, foot = 8;
  const layout = (dot, rows) => {
    let y = 0;
    const at = lists.map(([list, slabs]) => {
      const top = y + head;
      let x = 0, line = top;
      const places = slabs.map((slab) => {
        const wide = Math.ceil(slab.objects.length / rows) * dot;
        if (x + wide > width && x > 0) { x = 0; line += rows * dot + (dot > 2 ? 4 : 2); }
        const place = [x, line];
        x += wide + (dot > 2 ? 5 : 2);
        return place;
      });
      y = (slabs.length ? line + rows * dot : top - 4) + foot;
      return { list, slabs, top, places };
    });
    return { at, height: y, dot, rows };
  };
  const objects = shown.slabs[0]?.objects.length ?? 1;
  let found;
  for (const dot of [9, 8, 7, 6, 5, 4, 3, 2, 1.5, 1]) {
    found = layout(dot, Math.max(1, Math.min(8, Math.round(Math.sqrt(objects)))));
    if (found.height <= most) break;
  }
  const { g } = sheet(canvas, Math.min(Math.max(found.height, 80), 560));
  for (const { list, slabs, top, places } of found.at) {
    g.fillStyle = colours.quiet;
    g.font = '12px system-ui, sans-serif';
    g.fillText(`${list}: ${grouped(slabs.length)}`, 0, top - 5);
    slabs.forEach((slab, i) => drawSlab(g, slab, places[i][0], places[i][1], found.rows, found.dot));
  }
  if (!touched) return;
  for (const { slabs, places } of found.at) {
    const i = slabs.findIndex((slab) => slab.page === touched[0]);
    if (i < 0) continue;
    const x = places[i][0] + (Math.floor(touched[1] / found.rows) + 0.5) * found.dot;
    const y = places[i][1] + (touched[1] % found.rows + 0.5) * found.dot;
    g.strokeStyle = colours.card;
    g.lineWidth = 4;
    g.beginPath(); g.arc(x, y, Math.max(found.dot, 7), 0, 7); g.stroke();
    g.strokeStyle = colours.now;
    g.lineWidth = 2;
    g.beginPath(); g.arc(x, y, Math.max(found.dot, 7), 0, 7); g.stroke();
  }
}

// A CPU of the chosen cache: its levels side by side, object by object while that is possible.
function drawCpu(canvas, levels) {
  const { g, width } = sheet(canvas, 92);
  const wide = (width - 6 * (levels.length - 1)) / Math.max(1, levels.length);
  levels.forEach(({ name, objects, room }, which) => {
    const x = which * (wide + 6);
    g.fillStyle = colours.quiet;
    g.fillText(name, x, 10);
    g.strokeStyle = room ? colours.quiet : colours.line;
    g.strokeRect(x + 0.5, 15.5, wide - 1, 75);
    if (!room) return;
    const across = [4, 6, 8, 10, 14, 18, 24, 32, 48].find((n) => Math.ceil(room / n) * ((wide - 5) / n) <= 71) ?? 0;
    if (!across || (wide - 5) / across < 2) { column(g, x, 15, wide, 76, [objects, room], colours.cached); return; }
    const dot = Math.min((wide - 5) / across, 71 / Math.ceil(room / across), 12);
    for (let i = 0; i < room; i++) {
      const left = x + 3 + (i % across) * dot, top = 88 - (Math.floor(i / across) + 1) * dot;
      g.fillStyle = i < objects ? colours.cached : colours.soft;
      g.fillRect(left, top, dot - 1, dot - 1);
    }
  });
}

function drawOrders(canvas, orders) {
  const row = 16;
  const { g, width } = sheet(canvas, orders.length * row + 4);
  const most = Math.log2(2 + Math.max(...orders.map((types) => types.reduce((a, b) => a + b, 0))));
  const shades = [colours.used, colours.slab, colours.percpu];
  orders.forEach((types, order) => {
    const y = order * row, sum = types.reduce((a, b) => a + b, 0);
    g.fillStyle = colours.quiet;
    g.textAlign = 'right';
    g.fillText(String(order), 16, y + 12);
    g.textAlign = 'left';
    // The length is a logarithm; its parts are in proportion.
    const length = sum ? Math.max(2, (width - 90) * Math.log2(1 + sum) / most) : 0;
    let x = 24;
    types.forEach((blocks, type) => {
      const part = sum ? length * blocks / sum : 0;
      g.fillStyle = shades[type];
      g.fillRect(x, y + 3, part, row - 5);
      x += part;
    });
    g.fillStyle = colours.ink;
    g.fillText(grouped(sum), x + 6, y + 12);
  });
  canvas.setAttribute('aria-label', 'Free blocks: ' + orders.map((types, order) => `order ${order}: ${types.reduce((a, b) => a + b, 0)}`).join(', '));
}

// Pages in Morton order, so that a buddy and its neighbour are one square or two squares side by side.
const spread = Array.from({ length: 1024 }, (_, page) => {
  let x = 0, y = 0;
  for (let bit = 0; bit < 5; bit++) { x |= (page >> (2 * bit) & 1) << bit; y |= (page >> (2 * bit + 1) & 1) << bit; }
  return [x, y];
});

function drawMap(canvas, map) {
  const tiles = Math.max(1, map.length / 1024);
  const width = canvas.parentElement.clientWidth;
  const across = Math.max(10, Math.floor(width / 66));
  const down = Math.ceil(tiles / across);
  const wide = across * 33, high = down * 33;
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
  canvas.style.height = width * high / wide + 'px';
  const g = canvas.getContext('2d');
  const image = g.createImageData(wide, high);
  const rgb = [null, colours.percpu, colours.slab, colours.block].map((text) => text && [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
  const line = [1, 3, 5].map((i) => parseInt(colours.line.slice(i, i + 2), 16));
  for (let page = 0; page < map.length; page++) {
    const [x, y] = spread[page & 1023], tile = page >> 10;
    const at = 4 * (((Math.floor(tile / across) * 33 + y) * wide) + (tile % across) * 33 + x);
    const colour = rgb[map[page]] ?? line;
    image.data[at] = colour[0]; image.data[at + 1] = colour[1]; image.data[at + 2] = colour[2];
    image.data[at + 3] = map[page] ? 255 : 110;
  }
  g.putImageData(image, 0, 0);
}

const STRIPS = [30, 82]; // where the two strips of the time line begin
const STRIP = 34;

function drawLine() {
  const canvas = $('line').firstElementChild;
  const { g, width, height } = sheet(canvas, 134);
  const { operations, marks, caches } = state.about;
  const x = (at) => at / operations * width;
  const own = 4 + 3 * state.chosen;
  [['all caches', 0, 1], [caches[state.chosen], own, own + 1]].forEach(([name, used, cached], strip) => {
    const base = STRIPS[strip] + STRIP;
    const most = Math.max(1, ...state.samples.map(({ values }) => values[used] + values[cached]));
    const area = (height_of, colour) => {
      g.fillStyle = colour;
      g.beginPath();
      g.moveTo(0, base);
      for (const { at, values } of state.samples) g.lineTo(x(at), base - STRIP * height_of(values) / most);
      g.lineTo(x(state.samples.at(-1)?.at ?? 0), base);
      g.fill();
    };
    area((v) => v[used] + v[cached], colours.cached);
    area((v) => v[used], colours.used);
    g.fillStyle = colours.quiet;
    g.fillText(`${name}: objects in use and cached, up to ${grouped(most)}`, 0, STRIPS[strip] - 3);
  });
  let free = 0;
  for (const mark of marks) {
    const at = x(mark.operation);
    g.strokeStyle = colours.quiet;
    g.setLineDash([2, 2]);
    g.lineWidth = 1;
    g.beginPath(); g.moveTo(at, 14); g.lineTo(at, height - 14); g.stroke();
    g.setLineDash([]);
    const text = mark.text.replace(/^SNAP (\w+) (begin|end)$/, '$1').toLowerCase();
    const long = g.measureText(text).width;
    const left = Math.min(at + 2, width - long);
    if (left >= free && !mark.text.endsWith(' end')) {
      g.fillStyle = colours.quiet;
      g.fillText(text, left, 10);
      free = left + long + 8;
    }
  }
  if (state.view) {
    const at = x(state.view.operation);
    g.fillStyle = colours.now;
    g.fillRect(at - 1, 14, 2, height - 26);
    g.beginPath(); g.moveTo(at - 5, height - 12); g.lineTo(at + 5, height - 12); g.lineTo(at, height - 20); g.fill();
  }
  g.fillStyle = colours.quiet;
  g.fillText('0', 0, height - 1);
  g.textAlign = 'right';
  g.fillText(grouped(operations), width, height - 1);
  g.textAlign = 'left';
}

// --- the moment ---

function laneOf(cache) {
  const lane = document.createElement('button');
  lane.className = 'lane';
  lane.dataset.cache = cache;
  lane.innerHTML = '<span><b></b><small></small></span><canvas></canvas><canvas></canvas><canvas></canvas>';
  lane.onclick = () => choose(cache);
  return lane;
}

function buildLanes() {
  const cpus = state.about.cpus;
  const head = document.createElement('div');
  head.className = 'lane head';
  head.innerHTML = '<span></span><span></span><span>depot</span><span>slabs</span>';
  head.children[1].style.cssText = `display:grid;grid-template-columns:repeat(${cpus},minmax(0,1fr))`;
  head.children[1].innerHTML = cpus <= 8 ? Array.from({ length: cpus }, (_, cpu) => `<span>CPU ${cpu}</span>`).join('') : `<span style="white-space:nowrap">CPU 0 to ${cpus - 1}</span>`;
  $('lanes').style.setProperty('--cpus', cpus <= 2 ? '1.6fr' : '3fr');
  $('lanes').replaceChildren(head, ...state.lanes.map(laneOf));
  $('near-cpus').replaceChildren(...Array.from({ length: Math.min(cpus, 64) }, (_, cpu) => {
    const box = document.createElement('div');
    box.className = 'cpu';
    box.innerHTML = `<h3><span>CPU ${cpu}</span></h3><canvas role="img"></canvas><p></p>`;
    return box;
  }));
}

function choose(cache) {
  state.chosen = cache;
  if (!state.playing) show(state.view.operation);
}

const noun = (n, one) => `${grouped(n)} ${one}${n === 1 ? '' : 's'}`;

function show(n) {
  const shown = [...new Set([...state.lanes, state.chosen])];
  state.view = JSON.parse(state.travel.view(Math.min(Math.max(n, 0), state.about.operations), shown));
  draw();
}

function draw() {
  const { view, about } = state;
  if (!view) return;
  const step = view.steps.at(-1);
  const of = (cache) => view.shown.find((own) => own.cache === cache);
  $('of').textContent = 'of ' + grouped(about.operations);
  if (document.activeElement !== $('operation')) $('operation').value = grouped(view.operation);
  $('clock').textContent = (view.time_ns / 1e9).toFixed(6) + ' s of the trace';
  const line = $('line');
  line.setAttribute('aria-valuenow', view.operation);
  line.setAttribute('aria-valuetext', `operation ${view.operation} of ${about.operations}`);

  const mark = about.marks.find((own) => own.operation === view.operation);
  const chip = document.createElement('span');
  chip.className = 'path ' + (step?.path ?? 'none');
  chip.textContent = step?.path ?? (mark ? 'mark' : view.operation ? 'nothing' : 'begin');
  const said = mark && !step?.path ? `The trace is marked here: “${mark.text}”.`
    : view.operation ? view.steps.map((own) => own.sentence).join(' ') : 'Nothing has happened yet: every cache is empty, and no memory is committed. Press play, or step.';
  if (!state.playing || $('said').dataset.path !== chip.textContent || performance.now() - ($('said').at ?? 0) > 250) {
    $('said').replaceChildren(chip, said);
    $('said').dataset.path = chip.textContent;
    $('said').at = performance.now();
  }

  for (const lane of $('lanes').querySelectorAll('button')) {
    const cache = Number(lane.dataset.cache), counts = view.caches[cache], own = of(cache);
    lane.classList.toggle('chosen', cache === state.chosen);
    lane.setAttribute('aria-pressed', cache === state.chosen);
    const [name, meta] = lane.firstElementChild.children;
    name.textContent = about.caches[cache];
    meta.textContent = counts ? `${grouped(counts.size)} B · ${grouped(counts.used)} used · ${grouped(counts.in_magazines + counts.in_depot)} cached` : 'not yet';
    const [, cpus, depot, slabs] = lane.children;
    if (!own) { [cpus, depot, slabs].forEach((canvas) => sheet(canvas, LANE)); continue; }
    drawLaneCpus(cpus, own, step?.cache === cache ? step.cpu : -1);
    drawLaneDepot(depot, own);
    drawLaneSlabs(slabs, own, counts);
  }

  const counts = view.caches[state.chosen], own = of(state.chosen), here = step?.cache === state.chosen;
  $('near-head').replaceChildren(about.caches[state.chosen] + ' up close ', Object.assign(document.createElement('span'), {
    className: 'quiet',
    textContent: counts?.size ? `objects of ${grouped(counts.size)} bytes, ${counts.per_slab} a slab of order ${counts.order}; ${grouped(counts.used)} in use, ${grouped(counts.in_magazines)} in magazines, ${grouped(counts.in_depot)} in the depot, ${grouped(counts.free_in_slabs)} free in slabs`
      : counts ? 'no slabs: each object is a block of pages' : 'not used yet',
  }));
  document.querySelectorAll('#near-cpus .cpu').forEach((box, cpu) => {
    const levels = own?.cpus[cpu] ?? [];
    box.classList.toggle('acting', Boolean(here && step.cpu === cpu));
    drawCpu(box.children[1], levels);
    const said = levels.map(({ name, objects, room }) => `${name}: ${grouped(objects)} of ${grouped(room)}`).join(', ');
    box.children[1].setAttribute('aria-label', said);
    box.children[2].textContent = said;
  });
  const slabs = $('near-slabs').firstElementChild;
  drawNear(slabs, own ?? { slabs: [] }, here ? step.object : null);
  slabs.setAttribute('aria-label', counts ? `slabs: ${counts.full} full, ${counts.partial} partial, ${counts.empty} empty` : 'no slabs');

  const { pages } = view;
  const mib = (n) => (n / 256).toFixed(n < 25600 ? 1 : 0) + ' MiB';
  $('pages-sum').textContent = `${mib(pages.slab)} in slabs, ${mib(pages.blocks + pages.large)} in other blocks, ${mib(pages.per_cpu)} in per-CPU pages, ${mib(pages.free)} free, ${mib(pages.uncommitted)} not committed`;
  drawOrders($('orders'), pages.orders);
  const rows = [...pages.cpus.slice(0, 16).map((orders, cpu) => ['CPU ' + cpu, orders]), ['shared', pages.depot]];
  $('percpu').innerHTML = `<table><tr><th></th>${pages.depot.map((_, order) => `<th>${order}</th>`).join('')}</tr>` +
    rows.map(([name, orders]) => `<tr><td>${name}</td>${orders.map((n) => `<td>${n ? grouped(n) : '·'}</td>`).join('')}</tr>`).join('') + '</table>';
  drawMap($('map'), state.engine.map());
  $('map').setAttribute('aria-label', $('pages-sum').textContent);
  if ($('twin').open) drawTwin();
  drawLine();
}

function drawTwin() {
  const columns = ['size', 'per_slab', 'served', 'used', 'in_magazines', 'in_depot', 'free_in_slabs', 'full', 'partial', 'empty', 'depot_exchanges'];
  const cells = state.view.caches.map((cache) => `<tr><td>${cache.name.replace(/[<&]/g, (c) => (c === '<' ? '&lt;' : '&amp;'))}</td>${columns.map((key) => `<td>${grouped(cache[key])}</td>`).join('')}</tr>`);
  $('twin').querySelector('table').innerHTML = `<tr><th>cache</th>${columns.map((key) => `<th>${key.replaceAll('_', ' ')}</th>`).join('')}</tr>${cells.join('')}`;
}

// --- moving ---

function pause() {
  state.playing = false;
  $('playing').setAttribute('d', 'M4 2l10 6-10 6z');
  $('play').setAttribute('aria-label', 'Play');
}

function play() {
  if (state.view.operation >= state.about.operations) show(0);
  state.playing = true;
  $('playing').setAttribute('d', 'M3 2h4v12H3zM9 2h4v12H9z');
  $('play').setAttribute('aria-label', 'Pause');
  let last = performance.now(), owed = 0;
  const frame = (now) => {
    if (!state.playing) return;
    owed += Math.min(now - last, 100) / 1000 * state.speed;
    last = now;
    const whole = Math.floor(owed);
    owed -= whole;
    if (whole) show(state.view.operation + whole);
    if (state.view.operation >= state.about.operations) { pause(); return; }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

const go = (n) => { pause(); show(n); };
const by = (n) => go(state.view.operation + n);

// To the next operation that leaves what its CPU holds, within a while.
function nextEvent() {
  pause();
  const end = Math.min(state.about.operations, state.view.operation + 20000);
  for (let n = state.view.operation + 1; n <= end; n++) {
    const { steps } = JSON.parse(state.travel.view(n, []));
    if (n === end || steps.some(({ path }) => path && path !== 'cpu')) {
      const cache = steps.find(({ path }) => path && path !== 'cpu')?.cache;
      if (cache != null && state.about.caches[cache] && state.view.caches[cache]?.size) state.chosen = cache;
      show(n);
      return;
    }
  }
}

function listen() {
  const speed = $('speed');
  speed.replaceChildren(...SPEEDS.map((n) => new Option(`${grouped(n)} a second`, n)));
  speed.value = state.speed;
  speed.onchange = () => { state.speed = Number(speed.value); };
  const keys = {
    ' ': () => (state.playing ? pause() : play()),
    ArrowRight: (shift) => by(shift ? 1000 : 1), ArrowLeft: (shift) => by(shift ? -1000 : -1),
    Home: () => go(0), End: () => go(state.about.operations), n: nextEvent,
  };
  for (const [id, key] of Object.entries({ play: ' ', step: 'ArrowRight', back: 'ArrowLeft', home: 'Home', end: 'End', event: 'n' }))
    $(id).onclick = (event) => keys[key](event.shiftKey);
  addEventListener('keydown', (event) => {
    const typing = ['INPUT', 'SELECT'].includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey;
    const pressing = event.key === ' ' && ['BUTTON', 'SUMMARY'].includes(event.target.tagName);
    if (typing || pressing || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key](event.shiftKey);
  });
  $('operation').onchange = (event) => {
    const n = Number(event.target.value.replace(/\D/g, ''));
    event.target.blur();
    go(n);
  };
  const line = $('line');
  const seek = (event) => {
    const { left, width } = line.getBoundingClientRect();
    go(Math.round((event.clientX - left) / width * state.about.operations));
  };
  line.onpointerdown = (event) => { line.setPointerCapture(event.pointerId); seek(event); };
  line.onpointermove = (event) => { if (line.hasPointerCapture(event.pointerId)) seek(event); };
  $('twin').ontoggle = () => $('twin').open && drawTwin();
  new ResizeObserver(() => draw()).observe(document.querySelector('main'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); draw(); });
}

// --- start ---

const unpack = async (text) => new Uint8Array(await new Response(new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))])
  .stream().pipeThrough(new DecompressionStream('gzip'))).arrayBuffer());

// Runs the stream once: checkpoints for going back, samples for the time line.
async function record(wasm, stream, reserve) {
  const engine = await Engine.open(wasm, stream, reserve);
  const { operations } = engine.about;
  const travel = new Travel(engine, Math.max(5000, Math.ceil(operations / 32)));
  const samples = [];
  const point = () => samples.push({ at: engine.at, values: engine.sample() });
  const between = Math.max(1, Math.ceil(operations / SAMPLES));
  let pause_at = performance.now() + 50;
  point();
  for (;;) {
    const next = Math.min((travel.newest + 1) * travel.every, operations);
    while (engine.at + between < next) { engine.run(engine.at + between); point(); }
    if (!travel.record()) break;
    point();
    if (performance.now() > pause_at) {
      $('said').textContent = `The engine runs the trace once: ${Math.round(engine.at / operations * 100)} %`;
      await new Promise((then) => setTimeout(then));
      pause_at = performance.now() + 50;
    }
  }
  engine.run(operations);
  point();
  if (engine.e.memory.buffer.byteLength !== travel.first.length) throw new Grew();
  return { engine, travel, samples, about: engine.about };
}

async function start() {
  readColours();
  const [wasm, stream] = await Promise.all([unpack(ENGINE), unpack(STREAM)]);
  for (let reserve = 16 << 20; !state.travel; reserve *= 2) {
    try {
      Object.assign(state, await record(wasm, stream, reserve));
    } catch (error) {
      if (!(error instanceof Grew)) throw error;
    }
  }
  const { about, samples } = state;
  $('title').textContent = `${about.title}: ${noun(about.operations, 'operation')}, ${noun(about.cpus, 'CPU')}, ${noun(about.caches.length, 'cache')}`;
  $('line').setAttribute('aria-valuemax', about.operations);
  const last = samples.at(-1).values;
  const order = about.caches.map((_, cache) => cache).sort((a, b) => last[4 + 3 * b + 2] - last[4 + 3 * a + 2]);
  state.lanes = order.filter((cache) => last[4 + 3 * cache + 2] > 0).slice(0, LANES);
  // Up close is the cache that loses the most objects again: its slabs fill and empty.
  const lost = (cache) => Math.max(...samples.map(({ values }) => values[4 + 3 * cache])) - last[4 + 3 * cache];
  state.chosen = state.lanes.reduce((best, cache) => (lost(cache) > lost(best) ? cache : best), state.lanes[0] ?? 0);
  buildLanes();
  listen();
  const asked = Number(location.hash.slice(1));
  show(location.hash ? asked : Math.round(about.operations * 0.3));
}

globalThis.uslab = {
  ready: start().catch((error) => {
    $('said').textContent = `The page does not start: ${error.message ?? error}`;
    throw error;
  }),
  seek: go,
  view: () => state.view,
};
