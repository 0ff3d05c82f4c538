// node stage.mjs ENGINE.wasm FOLDER: what the stage shows and moves, as functions of moments of the engine, without a browser. FOLDER takes
// the built modules.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { build } from 'vite';
import { Engine } from '../built/travel.js';

const [wasm, folder] = process.argv.slice(2);
const outDir = resolve(folder, 'stage'), source = (name) => new URL(`../src/stage/${name}.ts`, import.meta.url).pathname;
const names = ['moment', 'plan', 'motion', 'paint', 'ink', 'sentence'];
await build({ configFile: false, logLevel: 'error', build: { outDir, emptyOutDir: true, minify: false, target: 'es2023', lib: { entry: Object.fromEntries(names.map((name) => [name, source(name)])), formats: ['es'] } } });
const [{ locksOf, momentOf, placeOf, traysOf }, { NOTHING, extended, plan }, { change, onTheWay }, { still, moving, NOTHING_APART }, { asSvg }, { happened }] =
  await Promise.all(names.map((name) => import(pathToFileURL(join(outDir, `${name}.js`)))));

/** The moments of a script, and plans of them at a size. */
async function ran(script, design, size = { w: 1400, h: 600, scale: 1, depot: 'depot', hands: true }) {
  const engine = await Engine.open(readFileSync(wasm), script.join('\n'), 0, design), moments = [];
  for (let n = 0; n <= engine.about.operations; n++) {
    const view = JSON.parse(engine.view(n, [0]));
    moments.push(momentOf(view, 0, engine.map().slice(), moments.at(-1)));
  }
  const extent = moments.reduce(extended, { ...NOTHING, cpus: engine.about.cpus, trays: 4 });
  const plans = moments.map((moment) => plan(moment, extent, size));
  const changes = moments.map(({ view: { steps } }, n) => (n ? change(plans[n - 1], plans[n], steps) : null));
  return { moments, plans, changes };
}
const SMALL = 'uslab:capacity=8:stock=0';
const warm = ['cpus 4', 'cache dentry 256', '0 alloc 17', '0 free 17', ...[1, 2, 3].flatMap((cpu) => [`${cpu} alloc`, `${cpu} free`]), '0 shrink'];

// --- a batch from a slab; then a pop ---
{
  const { plans, changes, moments } = await ran([...warm, '0 alloc 2', '0 shrink'], SMALL);
  const [first, second, last] = changes.slice(-3);
  assert.equal(first.born.length, 1);
  assert.equal(first.moves.length, 8, 'seven to the magazine, one to the program');
  const handed = first.moves.filter(({ to }) => to.place === 'program');
  assert.deepEqual(handed.map(({ via, from }) => [via.place, from.place.split(' ')[0]]), [['cpu 0', 'slab']], 'it passes its CPU');
  assert.deepEqual(first.groups.map(({ count, to }) => [count, to]), [[8, 'cpu 0'], [1, 'program']]);
  assert.deepEqual(second.moves.map(({ from, to }) => [from.place, to.place]), [['cpu 0', 'program']]);
  assert.equal(second.born.length + second.died.length, 0);
  assert.equal(last.moves.filter(({ from, to }) => from.place === 'cpu 0' && to.place.startsWith('slab')).length, 6, 'shrinking returns what the CPU has');
  assert(first.ms > second.ms);
  const stack = moments.at(-2).shown.cpus[0][0];
  assert.deepEqual([stack.objects, stack.room, stack.places.length], [6, 16, 6]);
  assert.deepEqual(traysOf([stack], 8).map(({ name, ids }) => [name, ids.length]), [["loaded", 6], ["previous", 0]]);
  assert.equal(plans.at(-1).chips.size, 2, 'two are with the program');
}

// --- a full stack: a magazine goes to the depot as one, and from there to another CPU ---
{
  const { plans, changes, moments } = await ran([...warm, '0 alloc 17', '0 free 10 newest', '1 alloc'], SMALL);
  const given = changes.at(-2), taken = changes.at(-1);
  assert.deepEqual(given.groups.map(({ from, to, count }) => [from, to, count]), [['cpu 0', 'depot', 8], ['program', 'cpu 0', 1]]);
  const [together] = given.groups, own = given.moves.filter(({ to }) => to.place === 'depot');
  assert(own.every(({ begin, end }) => begin === together.begin && end === own[0].end), 'a magazine moves as a whole');
  assert(given.moves.find(({ from }) => from.place === 'program').begin >= together.end, 'there is room before the freed one comes');
  assert.deepEqual(taken.groups.map(({ from, to, count }) => [from, to, count]), [['depot', 'cpu 1', 8], ['cpu 1', 'program', 1]]);
  // The same pointers: identity is kept.
  assert.deepEqual(new Set(taken.moves.map(({ id }) => id)), new Set(own.map(({ id }) => id)));
  const trays = traysOf(moments.at(-2).shown.cpus[0], 8);
  assert.deepEqual(trays.map(({ name, ids }) => [name, ids.length]), [['previous', 8], ['loaded', 1]]);
  assert(plans.at(-2).depot.trays.some(({ ids }) => ids.length === 8));
}

// --- every moment, at every size: the way begins at one moment and ends at the next, nothing is outside, nothing lies upon another ---
const story = [...warm, '0 alloc 40', '0 free 20 newest', '1 free 12 oldest', '2 alloc 21', '3 free 9 oldest', '0 shrink', '3 alloc 5'];
let compared = 0;
for (const design of [SMALL, 'uslab', 'slub', 'sheaves:sheaf_capacity=8', 'slab', 'magazines01', 'bonwick94']) {
  for (const size of [{ w: 1400, h: 600 }, { w: 374, h: 520 }]) {
    const { plans, changes, moments } = await ran(story, design, { scale: 1, depot: design === 'slub' || design === 'bonwick94' ? '' : 'depot', hands: true, ...size });
    for (const [n, own] of plans.entries()) {
      const before = plans[n - 1], seen = change && changes[n];
      for (const move of seen?.moves ?? []) {
        const [first, last] = [onTheWay(move, 0), onTheWay(move, 1)];
        assert.deepEqual([first.x, first.y, last.x, last.y], [move.from.x, move.from.y, move.to.x, move.to.y]);
        if (before.chips.has(move.id)) assert.deepEqual(move.from, before.chips.get(move.id));
        if (own.chips.has(move.id)) assert.deepEqual(move.to, own.chips.get(move.id));
      }
      // No way leads through a magazine of another CPU.
      const { cpu: actor } = moments[n].view.steps.at(-1) ?? {};
      for (const { from, to, way } of seen?.groups ?? []) {
        const others = own.cpus.flatMap(({ trays }, cpu) => (cpu === actor || [from, to].includes(`cpu ${cpu}`) ? [] : trays));
        const points = way.slice(1).flatMap(({ x, y }, i) => [0.25, 0.5, 0.75, 1].map((t) => [way[i].x + (x - way[i].x) * t, way[i].y + (y - way[i].y) * t]));
        for (const { box } of others) for (const [x, y] of points) assert(x < box.x || x > box.x + box.w || y < box.y || y > box.y + box.h, `${design}, moment ${n}: from ${from} to ${to} through another CPU`);
      }
      // What does not move is where it was.
      const moved = new Set(seen?.moves.map(({ id }) => id));
      if (before) for (const [id, { x, y }] of own.chips) if (!moved.has(id)) assert.deepEqual([before.chips.get(id)?.x, before.chips.get(id)?.y], [x, y], `${design}, moment ${n}`);
      for (const { x, y, r } of own.chips.values()) assert(x - r >= 0 && y - r >= 0 && x + r <= size.w && y + r <= size.h, `${design}: a pointer is outside`);
      for (const { box } of own.tiles.values()) assert(box.x >= 0 && box.x + box.w <= size.w + 1 && box.y + box.h <= size.h, `${design}: a slab is outside`);
      const places = [...own.chips.values()].map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`);
      assert.equal(new Set(places).size, places.length, `${design}, moment ${n}: two pointers at one place`);
      // Each pointer that a level has is of an object that has that holder in its slab.
      for (const [id, { holder }] of own.chips) {
        const [page, index] = placeOf(id), letter = own.tiles.get(page).objects[index];
        assert.equal(letter === 'u' ? 'program' : letter === 'd' ? 'depot' : 'cpu', holder, `${design}, moment ${n}`);
      }
      compared++;
    }
    assert(moments.at(-1).shown.slabs.length > 0);
  }
}

// --- the numbers agree: arrows to a CPU, less those from it, are what its number changes by; it changes when the movement ends ---
{
  const { plans, changes } = await ran(story, SMALL), colours = new Proxy({}, { get: () => '#000000' }), none = { depot: false, slabs: false, pages: false };
  for (const [n, own] of changes.entries()) {
    if (!own) continue;
    const [before, after] = [plans[n - 1], plans[n]], written = (shapes) => shapes.flatMap(({ is, text }) => (is === 'text' && / of 16$/.test(text) ? [text] : []));
    for (const [cpu, { ids }] of after.cpus.entries()) {
      const through = (key) => own.groups.filter((group) => group[key] === `cpu ${cpu}`).reduce((sum, { count }) => sum + count, 0);
      assert.equal(through('to') - through('from'), ids - before.cpus[cpu].ids, `moment ${n}, CPU ${cpu}`);
    }
    assert.deepEqual(written(still(colours, after, NOTHING_APART, [], none, { counted: before })), before.cpus.map(({ ids }) => `${ids} of 16`));
    assert.deepEqual(written(still(colours, after, NOTHING_APART, [], none)), after.cpus.map(({ ids }) => `${ids} of 16`));
  }
}

// --- the sentence says what the picture shows: the acting CPU, the locks, and how many pointers it has ---
{
  const { moments } = await ran(story, SMALL), said = new Set();
  for (const { view, shown } of moments.slice(1)) {
    const text = happened(view), locks = locksOf(view.steps), [{ cpu, path, what }] = view.steps;
    assert(what === 'shrink' ? text.startsWith('All that is free') : text.startsWith(`CPU ${cpu} ${what === 'alloc' ? 'allocates' : 'frees'} an object`), text);
    assert.equal(text.includes('without a lock'), path === 'cpu', text);
    assert(!text.includes("the depot's lock") || locks.depot, text);
    assert(!text.includes('the lock of the slabs') || locks.slabs, text);
    const left = /: (\d+) (?:left|of)|, (\d+) for its magazine/.exec(text)?.slice(1).find(Boolean);
    if (left) assert.equal(Number(left), shown.cpus[cpu][0].objects, text);
    said.add(text.replaceAll(/\d+/g, 'n'));
  }
  assert(said.size >= 8, [...said].join('\n'));
}

// --- slabs and shared magazines keep their seats while others come and go; the same moment is the same file ---
{
  const { moments, plans, changes } = await ran(story, SMALL);
  for (const [n, { seats }] of moments.entries()) {
    for (const kind of ['slabs', 'shared']) {
      for (const [key, seat] of seats[kind]) {
        const before = moments[n - 1]?.seats[kind].get(key);
        assert(before === undefined || before === seat);
      }
      assert.equal(new Set(seats[kind].values()).size, seats[kind].size);
    }
  }
  const colours = Object.fromEntries(['card', 'ink', 'quiet', 'line', 'soft', 'used', 'cached', 'depot', 'free', 'now', 'page-slab', 'page-cpu', 'page-other'].map((name, i) => [name, `#${String(100000 + i * 7777)}`]));
  const none = { depot: false, slabs: false, pages: false };
  const svg = () => asSvg([...still(colours, plans.at(-1), NOTHING_APART, [], none), { is: 'text', x: 0, y: 0, text: '<&"', size: 1, fill: '#000000' }], 1400, 600, 'a <moment>');
  assert.equal(svg(), svg());
  assert(!/NaN|undefined|<&|Infinity/.test(svg()));
  const n = changes.findLastIndex((own) => own?.moves.length > 4);
  for (const t of [0, 0.3, 0.7, 1]) assert(!/NaN|undefined|Infinity/.test(asSvg(moving(colours, plans[n - 1], plans[n], changes[n], t), 1, 1, '')));
}
console.log(`PAGE | the stage: ${compared} moments of seven designs, each way begins and ends where it should`);
