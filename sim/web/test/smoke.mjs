// node smoke.mjs USLAB FOLDER [full]: the page of the bundled trace in Chromium, from disk: every button, every key, random moments beside
// native ones, links, another design, a longer stream, pictures at three widths into FOLDER. `full`: more moments, all designs, and five
// million operations. Counts are asserted; times are told.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { gunzipSync, gzipSync } from 'node:zlib';
import { decoded, encoded } from './carried.mjs';
import { drive } from './browser.mjs';
import { repeated } from './long.mjs';

const [uslab, folder, how] = process.argv.slice(2);
const full = how === 'full';
mkdirSync(folder, { recursive: true });
const file = resolve(folder, 'page.html');
const run = (...args) => execFileSync(uslab, args, { maxBuffer: 1 << 30, stdio: ['ignore', 'pipe', 'inherit'] });
const native = (...args) => run('replay', ...args);
const moments = (at, design = 'uslab', cpus = 4) => JSON.parse(native('--at', at.join(), '--cpus', cpus, '--design', design, '--json')).moments;
/** The same, some at a time: a moment is half a megabyte of JSON. */
function* some(places, design, cpus) {
  for (let i = 0; i < places.length; i += 200)
    for (const [j, moment] of moments(places.slice(i, i + 200), design, cpus).entries()) yield [i + j, moment];
}
const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];
const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
const said = (...words) => console.log('PAGE |', ...words);

native('--html', file);
const bytes = statSync(file).size;
assert(bytes <= 1_500_000, `${bytes} bytes`);

const at = (page) => page.evaluate(async () => (await window.uslab.view()).operation);
const seek = (page, n) => page.evaluate((n) => window.uslab.seek(n), n);
/** Until it shows one of these operations. A promise that `waitForFunction` is given counts as a yes: this is none. */
const shows = (page, from, to = Infinity) => page.waitForFunction(([from, to]) => {
  const n = Number(document.getElementById('operation').value.replace(/\D/g, ''));
  return n >= from && n <= to;
}, [from, to]);
const text = (page, id) => page.textContent(`#${id}`);
/** Clicks the first object of the first slab on the stage; its slab's page. */
async function touch(page) {
  const [slab, at] = await page.evaluate(async () => {
    const { page } = (await window.uslab.view()).shown[0].slabs[0];
    return [page, await window.uslab.place(page, 0)];
  });
  await page.evaluate(() => scrollTo(0, 0));
  const box = await page.locator('.stage canvas').first().boundingBox();
  await page.mouse.click(box.x + at.x, box.y + at.y);
  return slab;
}

await drive('replay', async (openFile) => {
  const open = (hash, options) => openFile(file, hash, options);
  const page = await open();
  const ready = await page.evaluate(() => performance.now());
  const operations = Number((await text(page, 'of')).replace(/\D/g, ''));
  const [counts] = await page.evaluate(() => window.uslab.counts());
  assert.equal(counts.checkpoints, 31);
  assert(counts.kept < 64 << 20, `${counts.kept} bytes of checkpoints`);
  // It plays operations on the cache of the stage, and no other.
  const [opened, on] = [await at(page), Number(await page.locator('.tab[aria-pressed=true]').getAttribute('data-cache'))];
  for (let i = 0, last = opened; i < 3; i++) {
    await page.waitForFunction((last) => Number(document.getElementById('operation').value.replace(/\D/g, '')) > last, last);
    const view = await page.evaluate(() => window.uslab.view());
    last = view.operation;
    assert(view.steps.some(({ cache }) => cache === on), `operation ${last} is not of cache ${on}`);
  }
  assert.equal(await page.getAttribute('#play', 'aria-label'), 'Pause');
  said(`${bytes} bytes, ready after ${Math.round(ready)} ms, ${counts.checkpoints} checkpoints of ${mib(counts.kept)}`);

  // --- the first screen: the stage has most of it, with what it says and what moves it; it answers a question first ---
  for (const [width, height] of [[1440, 900], [390, 844]]) {
    const own = await open('', { viewport: { width, height } });
    const { share, below, wide, answers } = await own.evaluate(() => {
      const { width, height } = document.querySelector('.stage').getBoundingClientRect();
      return {
        share: width * height / (innerWidth * innerHeight), wide: document.documentElement.scrollWidth, answers: document.querySelectorAll('.answer').length,
        below: Math.max(...Array.from(document.querySelectorAll('#said, #line, .first .bar'), (part) => part.getBoundingClientRect().bottom)),
      };
    });
    assert(share >= 0.6 && below <= height && wide <= width, `at ${width} the stage has ${share.toFixed(2)} of the first screen; it ends at ${below}, and is ${wide} wide`);
    assert.equal(answers, 3);
    assert((await own.evaluate(() => window.uslab.counts()))[0].objects > 100, 'objects are drawn');
    for (const answer of await own.locator('.answer').all()) await answer.click();
    await own.context().close();
  }

  // --- any moment is as it is natively ---
  let seed = 1n;
  const random = (below) => {
    seed = (seed * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
    return Number(seed >> 33n) % below;
  };
  async function compare(count, design, side, cpus) {
    const places = [0, 1, operations, ...Array.from({ length: count - 3 }, () => random(operations))];
    const times = [];
    for (const [i, expected] of some(places, design, cpus)) {
      const [view, took] = await page.evaluate(async ([n, side]) => {
        const begun = performance.now();
        await window.uslab.seek(n);
        return [await window.uslab.view(side), performance.now() - begun];
      }, [places[i], side]);
      times.push(took);
      const shown = view.shown.map(({ cache }) => cache);
      expected.shown = shown.map((cache) => expected.shown.find((own) => own.cache === cache));
      assert.deepEqual(view, expected, `${design}, operation ${places[i]}`);
    }
    return times;
  }
  const count = full ? 2000 : 200;
  const times = await compare(count, 'uslab', 0);
  const [{ reran, checkpoints }] = await page.evaluate(() => window.uslab.counts());
  assert(reran <= count * Math.ceil(operations / (checkpoints + 1)), `${reran} operations ran again`);
  said(`${count} moments as natively, a seek ${median(times).toFixed(1)} ms, ${reran} operations ran again`);

  // --- every button and key ---
  const press = async (key, from, to) => {
    await seek(page, from);
    await page.locator('h1').click();
    await page.keyboard.press(key);
    assert.equal(await at(page), to, key);
  };
  const click = async (key, from, to) => {
    await seek(page, from);
    await page.click(`button[data-key="${key}"]`);
    assert.equal(await at(page), to, `button ${key}`);
  };
  for (const move of [press, click]) {
    await move('ArrowRight', 100, 101);
    await move('ArrowLeft', 100, 99);
    await move('Home', 100, 0);
    await move('End', 100, operations);
  }
  await press('Shift+ArrowRight', 100, 1100);
  await press('Shift+ArrowLeft', 100, 0);
  await press('ArrowRight', operations, operations);

  await page.fill('#operation', '12,345');
  await page.keyboard.press('Enter');
  assert.equal(await at(page), 12345);
  for (const toggle of [() => page.keyboard.press(' '), () => page.click('#play')]) {
    await seek(page, 5000);
    await page.locator('h1').click();
    await page.selectOption('#speed', '100000');
    await page.locator('h1').click();
    await toggle();
    await shows(page, 15001);
    assert.equal(await page.getAttribute('#play', 'aria-label'), 'Pause');
    await page.keyboard.press('l');
    await toggle();
    const copied = new URL(await page.evaluate(() => window.copied.pop())).hash;
    assert(Number(new URLSearchParams(copied.slice(1)).get('at')) > 15000, `while it plays the link is ${copied}`);
    assert.equal(await page.getAttribute('#play', 'aria-label'), 'Play');
    const stopped = await at(page);
    await page.evaluate(() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then))));
    assert.equal(await at(page), stopped);
  }
  // What is slow is what the engine says is slow, and nothing before it is.
  let found = 0;
  for (const go of [() => page.keyboard.press('n'), () => page.click('button[data-key="n"]')]) {
    await seek(page, 300000);
    await page.locator('h1').click();
    await go();
    await shows(page, 300001);
    const to = await at(page);
    assert(!found || to === found);
    found = to;
  }
  {
    const paths = moments(Array.from({ length: found - 300000 }, (_, i) => 300001 + i)).map(({ steps }) => steps.some(({ path }) => path && path !== 'cpu'));
    assert.deepEqual(paths, paths.map((_, i) => i === paths.length - 1));
  }

  // --- caches ---
  const chosen = () => page.locator('.tab[aria-pressed=true]').getAttribute('data-cache');
  const before = await chosen();
  await page.locator('.tab[aria-pressed=false]').first().click();
  assert.notEqual(await chosen(), before);
  const dentry = page.locator('.tab', { hasText: /^dentry/ });
  await dentry.click();
  const cache = Number(await chosen());

  // --- the map of pages: closer, and whose a page is ---
  const wide = () => page.locator('.map').evaluate((canvas) => canvas.clientWidth);
  const whole = await wide();
  await page.click('.closer');
  assert(Math.abs(await wide() - 2 * whole) < 4);
  await page.locator('.map').hover({ position: { x: 20, y: 20 } });
  assert.match(await page.textContent('.owner'), /^Page [\d,]+: (a slab of \w|a block of another user|free|a large object)/);
  await page.click('.wider');
  assert.equal(await wide(), whole);

  // --- run until: it happens there ---
  const settled = () => page.locator('#stop').waitFor({ state: 'hidden' });
  const happens = {
    miss: (was, is) => is.steps.some((step) => step.cache === cache && step.path !== 'cpu'),
    'depot-empty': (was, is) => was.caches[cache].in_depot > 0 && is.caches[cache].in_depot === 0,
    'slab-born': (was, is) => is.caches[cache].slabs_made > was.caches[cache].slabs_made,
    'slab-dies': (was, is) => ['full', 'partial', 'empty'].reduce((n, list) => n + is.caches[cache][list] - was.caches[cache][list], 0) < 0,
    commit: (was, is) => is.pages.uncommitted < was.pages.uncommitted,
  };
  const stops = {};
  for (const [condition, held] of Object.entries(happens)) {
    const from = condition === 'slab-born' ? 100000 : 200000;
    for (const go of condition === 'miss' ? [() => page.click('button[data-key="u"]'), () => page.keyboard.press('u')] : [() => page.keyboard.press('u')]) {
      await seek(page, from);
      await page.selectOption('#condition', condition);
      await page.locator('h1').click();
      await go();
      await settled();
      stops[condition] = await at(page);
      assert(stops[condition] > from, `${condition}: ${await text(page, 'problem')}`);
    }
  }
  const stopped = moments(Object.values(stops).flatMap((n) => [n - 1, n]));
  Object.entries(happens).forEach(([condition, held], i) => assert(held(stopped[2 * i], stopped[2 * i + 1]), `${condition} at ${stops[condition]}`));
  said(`run until: ${JSON.stringify(stops)}`);
  await seek(page, operations);
  await page.keyboard.press('u');
  await settled();
  assert.match(await text(page, 'problem'), /No later operation meets the condition/);
  await page.keyboard.press('n');
  await settled();
  assert.match(await text(page, 'problem'), /No slow path is left/);
  await seek(page, 0);
  await page.selectOption('#condition', 'object');
  await page.locator('h1').click();
  await page.keyboard.press('u');
  assert.match(await text(page, 'problem'), /No object is followed/);

  // --- one object ---
  await seek(page, stops.miss);
  const step = (await page.evaluate(() => window.uslab.view())).steps.find(({ object }) => object);
  await page.keyboard.press('f');
  await page.waitForFunction(() => !document.getElementById('life-head').textContent.includes('%'));
  assert.match(await text(page, 'life-head'), new RegExp(`Object ${step.object[1]} of the slab at page ${step.object[0].toLocaleString('en-US')}, dentry`));
  const events = await page.$$eval('#life-list li', (items) => items.map((item) => [Number(item.textContent.match(/operation ([\d,]+)/)[1].replaceAll(',', '')), item.textContent]));
  assert(events.some(([n]) => n === stops.miss));
  // Each event is one natively.
  const around = moments(events.slice(0, 20).flatMap(([n]) => [n - 1, n]));
  for (const [i, [, words]] of events.slice(0, 20).entries()) {
    const [was, is] = around.slice(2 * i, 2 * i + 2);
    const holder = (view) => view.shown.find((own) => own.cache === cache)?.slabs.find(({ page }) => page === step.object[0])?.objects[step.object[1]];
    const touched = is.steps.some(({ object }) => object?.join() === step.object.join());
    assert.equal(touched, /allocates|frees/.test(words), words);
    assert(touched || holder(was) !== holder(is), words);
  }
  said(`a life of ${events.length} events: ${events.slice(0, 3).map(([, words]) => words).join('; ')}`);
  await page.locator('#life-list button').first().click();
  assert.equal(await at(page), events[0][0]);
  await page.selectOption('#condition', 'object');
  await page.locator('h1').click();
  await page.keyboard.press('u');
  await settled();
  assert.equal(await at(page), events[1]?.[0] ?? events[0][0]);
  await page.click('#unfollow');
  assert(await page.locator('#life').isHidden());
  // A click in a slab follows, too.
  const slab = await touch(page);
  assert.match(await text(page, 'life-head'), new RegExp(`Object 0 of the slab at page ${slab.toLocaleString('en-US')}, dentry`));
  await page.keyboard.press('Escape');

  // --- the time line ---
  const range = () => page.evaluate(() => new URLSearchParams(location.hash.slice(1)).get('range'));
  const linked = (wanted) => page.waitForFunction((wanted) => {
    const range = new URLSearchParams(location.hash.slice(1)).get('range');
    return (range === null) === wanted;
  }, wanted);
  await page.evaluate(() => scrollTo(0, 0));
  const box = await page.locator('#line').boundingBox();
  // Titles are in front of the strips.
  const gutter = 158;
  await page.mouse.click(box.x + (gutter + box.width) / 2, box.y + 50);
  assert(Math.abs(await at(page) - operations / 2) < operations / 500);
  for (const [closer, whole] of [
    [async () => { await page.mouse.move(box.x + 200, box.y + 50); await page.mouse.down(); await page.mouse.move(box.x + 400, box.y + 50); await page.mouse.up(); }, () => page.keyboard.press('0')],
    [() => page.keyboard.press('+'), () => page.keyboard.press('-')],
    [() => page.click('button[data-key="+"]'), () => page.click('button[data-key="0"]')],
    [() => page.keyboard.press('+'), () => page.click('button[data-key="-"]')],
  ]) {
    await closer();
    await linked(false);
    const [from, to] = (await range()).split('-').map(Number);
    assert(to - from < operations / 3, `${from} to ${to}`);
    await whole();
    await linked(true);
  }

  // --- what if ---
  const high = () => page.locator('#line canvas').evaluate((canvas) => canvas.clientHeight);
  const alone = await high();
  // What is asked for last is shown, whatever is indexed meanwhile.
  await page.evaluate(() => Promise.all([window.uslab.run('slub'), window.uslab.run('slob'), window.uslab.run('')]));
  assert.equal(await page.locator('.side').count(), 1);
  assert.equal(await text(page, 'problem'), '');
  await page.fill('#beside', 'slub:cpu_partial=0');
  await page.keyboard.press('Enter');
  await page.locator('.side').nth(1).waitFor();
  assert(await high() > alone + 50, 'the differences are on the time line');
  await compare(full ? 500 : 12, 'slub:cpu_partial=0', 1);
  assert.match(await text(page, 'said'), /slub:cpu_partial=0/);
  // On fewer CPUs, by their number's remainder: as natively with --cpus.
  await page.fill('#cpus', '3');
  await page.keyboard.press('Enter');
  await page.locator('.design', { hasText: 'on 3 CPUs' }).waitFor();
  await compare(full ? 200 : 5, 'slub:cpu_partial=0', 1, 3);
  // What both cost in virtual time, as `uslab scale` says.
  await page.click('#virtual summary');
  await page.locator('#virtual-table table').waitFor();
  await page.selectOption('#profile', 'milan2s');
  await page.locator('#virtual-table caption', { hasText: 'milan2s' }).waitFor();
  const scaling = await text(page, 'virtual-command');
  assert.match(scaling, /^uslab scale --trace --cpus 4,3 --design uslab-model,slub:cpu_partial=0 --profile milan2s$/);
  const { curves } = JSON.parse(run(...scaling.split(' ').slice(1), '--json'));
  const predicted = await page.$$eval('#virtual-table tbody tr', (rows) => rows.map((row) => [...row.children].map(({ textContent }) => textContent)));
  const costs = [4, 3].map((wanted, i) => curves[i].points.find(({ cpus }) => cpus === wanted));
  const row = (name) => predicted.find(([head]) => head.startsWith(name)).slice(1).map((text) => Number(text.replaceAll(',', '')));
  row('throughput').forEach((speed, i) => assert(Math.abs(speed - costs[i].operations_per_us) < 0.01 * speed, `${speed}`));
  assert.deepEqual(row('slabs'), costs.map(({ slabs }) => slabs));
  await page.fill('#cpus', '5000');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => /5000|CPUs/.test(document.getElementById('problem').textContent));
  await page.fill('#cpus', '');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => ![...document.querySelectorAll('.design')].some(({ textContent }) => textContent.includes(' on ')));
  await page.fill('#beside', 'slob');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.getElementById('problem').textContent);
  assert.match(await text(page, 'problem'), /unknown design `slob`; expected one of uslab, /);
  assert.equal(await page.locator('.side').count(), 2);
  if (full) {
    const designs = await page.$$eval('#designs option', (options) => options.map(({ value }) => value));
    assert(designs.length >= 7);
    for (const design of designs.slice(1)) {
      await page.evaluate((design) => window.uslab.run(design), design);
      const took = await compare(200, design, 1);
      said(`${design}: 200 moments as natively, a seek of both ${median(took).toFixed(1)} ms`);
    }
    await page.evaluate(() => window.uslab.run('slub:cpu_partial=0'));
  }

  // --- the link and the command line restore it ---
  await seek(page, 423456);
  await page.locator('.tab', { hasText: /^filp/ }).first().click();
  await page.keyboard.press('+');
  await touch(page);
  await page.waitForFunction(() => location.hash.includes('object='));
  await page.keyboard.press('l');
  await page.keyboard.press('c');
  await page.click('button[data-key="l"]');
  await page.click('button[data-key="c"]');
  const [link, command, ...again] = await page.evaluate(() => window.copied);
  assert.deepEqual(again, [link, command]);
  const restored = await open(new URL(link).hash);
  for (const side of [0, 1]) {
    const [a, b] = await Promise.all([page, restored].map((own) => own.evaluate((side) => window.uslab.view(side), side)));
    // What the last operation did is told of both, and all else is the same.
    assert.deepEqual(b, a);
  }
  await restored.waitForFunction((hash) => location.hash === hash, new URL(link).hash);
  assert.equal(await restored.isVisible('#life'), true);
  assert.deepEqual(command.split('\n'), ['uslab replay --at 423456 --json', 'uslab replay --at 423456 --design slub:cpu_partial=0 --json']);
  assert.equal(moments([423456])[0].operation, 423456);
  await restored.evaluate(() => { location.hash = '#at=77'; });
  await shows(restored, 77, 77);
  assert.equal(await restored.locator('.side').count(), 1);
  // What is wrong with a link stays said.
  await restored.evaluate(() => { location.hash = '#at=78&beside=slob'; });
  await shows(restored, 78, 78);
  assert.match(await text(restored, 'problem'), /unknown design `slob`/);
  await restored.context().close();
  const odd = await open('#at=99999999&design=slob&range=9-3&object=x');
  assert.equal(await at(odd), operations);
  assert.match(await text(odd, 'problem'), /unknown design `slob`/);
  // The cache of an object that is followed stays chosen.
  await seek(odd, stops.miss);
  await odd.locator('h1').click();
  for (const key of ['f', 'Escape', 'n', 'n', 'n']) {
    await odd.keyboard.press(key);
    await odd.locator('#stop').waitFor({ state: 'hidden' });
    assert.equal(await odd.locator('.tab[aria-pressed=true]').getAttribute('data-cache'), String(cache));
  }
  assert(await at(odd) > stops.miss);
  await odd.context().close();

  // --- for everybody ---
  await page.click('#twin summary');
  await page.locator('#twin table').nth(3).waitFor({ state: 'attached' });
  assert.equal(await page.locator('#twin table').count(), 4);
  assert((await page.locator('#twin tbody tr').count()) > 86);
  // Operations by path so far, in the table of the run: at its end, as the time line's strip adds them up.
  const last = await page.locator('#twin table').nth(3).locator('tbody tr').last().locator('th, td').allTextContents();
  assert(last[0] === operations.toLocaleString('en-US') && last.slice(5).every((n) => Number(n.replaceAll(',', '')) > 0), `${last}`);
  const unnamed = await page.$$eval('button, input, select, canvas:not([aria-hidden])', (all) => all.filter((element) => {
    const label = element.getAttribute('aria-label') ?? element.textContent.trim() ?? '';
    const outer = element.closest('label, [role=slider], button[aria-label]');
    return !label && !outer?.textContent.trim() && !outer?.getAttribute('aria-label');
  }).map((element) => element.outerHTML.slice(0, 100)));
  assert.deepEqual(unnamed, []);
  await page.focus('button[data-key="Home"]');
  for (const key of ['Home', 'ArrowLeft', ' ', 'ArrowRight', 'End']) {
    assert.equal(await page.evaluate(() => document.activeElement.dataset.key), key);
    await page.keyboard.press('Tab');
  }
  await page.context().close();

  // --- a longer stream: used while it is indexed, within bounds afterwards ---
  {
    const html = readFileSync(file, 'utf8');
    const carried = (html) => html.match(/id="stream">([^<]*)</)[1];
    const stream = repeated(gunzipSync(decoded(carried(html))), full ? 8 : 2);
    const [ops, path] = [resolve(folder, 'long.ops'), resolve(folder, 'long.html')];
    writeFileSync(ops, stream);
    writeFileSync(path, html.replace(carried(html), () => encoded(gzipSync(stream))));
    const long = await openFile(path, '', {}, 'usable');
    const usable = await long.evaluate(() => performance.now());
    const all = Number((await text(long, 'of')).replace(/\D/g, ''));
    assert(all > operations * (full ? 8 : 2));
    // What is asked for last is shown, as soon as it can be.
    await seek(long, 7);
    assert.equal(await at(long), 7);
    await seek(long, all - 1);
    await long.locator('.tab[aria-pressed=true]').click();
    await long.evaluate(() => window.uslab.ready);
    const indexed = await long.evaluate(() => performance.now());
    assert.equal(await at(long), all - 1);
    assert.equal(await text(long, 'problem'), '');
    const counts = () => long.evaluate(async () => (await window.uslab.counts())[0]);
    const { checkpoints, every, memory } = await counts();
    assert.equal(checkpoints, Math.floor((all - 1) / every));
    assert(checkpoints >= 15 && memory <= 384 << 20, `${checkpoints} checkpoints, ${memory} bytes`);
    // No seek runs more again than lies between two checkpoints; no stage has more objects than slabs are shown.
    const places = Array.from({ length: full ? 50 : 10 }, () => random(all)), times = [];
    let objects = 0;
    const expected = JSON.parse(execFileSync(uslab, ['replay', ops, '--design', 'uslab', '--at', places.join(), '--json'], { maxBuffer: 1 << 30 })).moments;
    for (const [i, n] of places.entries()) {
      const { reran } = await counts();
      const [view, took] = await long.evaluate(async (n) => {
        const begun = performance.now();
        await window.uslab.seek(n);
        return [await window.uslab.view(), performance.now() - begun];
      }, n);
      times.push(took);
      const after = await counts();
      assert(after.reran - reran < every, `${after.reran - reran} operations ran again for ${n}`);
      objects = Math.max(objects, after.objects);
      const shown = view.shown.map(({ cache }) => cache);
      assert.deepEqual(view, { ...expected[i], shown: shown.map((cache) => expected[i].shown.find((own) => own.cache === cache)) }, `operation ${n}`);
    }
    assert(objects > 0 && objects < 100_000, `${objects} objects`);
    await seek(long, all >> 1);
    await long.selectOption('#speed', '1000');
    await long.locator('h1').click();
    await long.keyboard.press(' ');
    const frames = await long.evaluate(() => new Promise((then) => {
      const begun = performance.now();
      let frames = 0;
      const frame = (now) => (now - begun < 2000 ? ++frames && requestAnimationFrame(frame) : then(frames / (now - begun) * 1000));
      requestAnimationFrame(frame);
    }));
    said(`${all} operations: usable after ${Math.round(usable)} ms, indexed after ${Math.round(indexed)} ms, ${mib(memory)} with ${checkpoints} checkpoints, ` +
      `a seek ${median(times).toFixed(1)} ms, at most ${Math.max(...times).toFixed(1)} ms, ${objects} objects, ${frames.toFixed(0)} pictures a second`);
    await long.context().close();
  }

  // --- seen at three widths, dark and light ---
  const own = await open('#at=425764&cache=dentry', { reducedMotion: 'reduce' });
  // Who wants little motion gets two pictures a second, however fast it plays.
  const pictures = async (page) => {
    await page.selectOption('#speed', '100');
    await page.locator('h1').click();
    await page.keyboard.press(' ');
    const counted = await page.evaluate(() => new Promise((then) => {
      const operations = new Set(), begun = performance.now();
      let frames = 0;
      const frame = async () => {
        operations.add((await window.uslab.view()).operation);
        if (++frames < 90) requestAnimationFrame(frame);
        else then({ shown: operations.size, most: 2 + (performance.now() - begun) / 500 });
      };
      requestAnimationFrame(frame);
    }));
    await page.keyboard.press(' ');
    return counted;
  };
  // A page that is opened at a moment does not play on its own.
  const moving = await open('#at=425764&cache=dentry');
  const [calm, lively] = [await pictures(own), await pictures(moving)];
  await moving.context().close();
  assert(calm.shown > 1 && calm.shown <= calm.most && lively.shown > 45, `pictures in 90 frames: with little motion ${calm.shown} of at most ${calm.most.toFixed(1)}, without ${lively.shown}`);
  assert.equal(await own.evaluate(() => document.getAnimations().length), 0);
  await seek(own, 425764);
  const look = async (name, width, colorScheme) => {
    await own.setViewportSize({ width, height: 900 });
    await own.emulateMedia({ colorScheme });
    await own.evaluate(() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then))));
    assert(await own.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} at ${width} scrolls sideways`);
    assert.deepEqual(await own.evaluate(contrasts), [], colorScheme);
    await own.screenshot({ path: join(folder, `${name}-${width}-${colorScheme}.png`), fullPage: true });
  };
  for (const name of ['one', 'two']) {
    for (const colorScheme of ['light', 'dark']) for (const width of [390, 820, 1440]) await look(name, width, colorScheme);
    await own.evaluate(() => window.uslab.run('slub'));
    await own.keyboard.press('f');
    await own.waitForFunction(() => !document.getElementById('life-head').textContent.includes('%'));
  }
});

/** Colours of page.css that are hard to see: texts below 4.5 to 1, pictures below 3 to 1, and pairs that look alike to the colour-blind. */
function contrasts() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => [1, 3, 5].map((i) => parseInt(style.getPropertyValue(`--${name}`).trim().slice(i, i + 2), 16) / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const ratio = (a, b) => {
    const [high, low] = [light(colour(a)), light(colour(b))].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const wrong = [];
  for (const [names, grounds, least] of [
    [['ink', 'quiet', 'now', 'cpu-path', 'depot-path', 'slab-path', 'pages-path', 'commit-path'], ['card', 'paper'], 4.5],
    [['ink', 'quiet'], ['soft'], 4.5],
    [['used', 'cached', 'depot', 'free', 'now', 'block', 'page-slab', 'page-other', 'page-cpu'], ['card'], 3],
  ]) {
    for (const name of names) for (const ground of grounds) {
      if (ratio(name, ground) < least) wrong.push(`${name} on ${ground}: ${ratio(name, ground).toFixed(2)}`);
    }
  }
  // As those without red or green cones see it (Viénot, Brettel, Mollon 1999), in Oklab.
  const seen = {
    'everybody else': [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    protanope: [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    deuteranope: [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
  };
  const oklab = ([r, g, b]) => {
    const [l, m, s] = [0.4122 * r + 0.5363 * g + 0.0514 * b, 0.2119 * r + 0.6807 * g + 0.1074 * b, 0.0883 * r + 0.2817 * g + 0.63 * b].map(Math.cbrt);
    return [0.2105 * l + 0.7936 * m - 0.0041 * s, 1.978 * l - 2.4286 * m + 0.4506 * s, 0.0259 * l + 0.7828 * m - 0.8087 * s];
  };
  for (const [who, matrix] of Object.entries(seen)) {
    const look = (name) => oklab(matrix.map((row) => Math.max(0, row.reduce((sum, part, i) => sum + part * colour(name)[i], 0))));
    const apart = (a, b) => {
      const distance = Math.hypot(...look(a).map((part, k) => part - look(b)[k]));
      if (distance < 0.1) wrong.push(`${a} and ${b} to a ${who}: ${distance.toFixed(3)} apart`);
    };
    const objects = ['used', 'cached', 'depot', 'free'], pages = ['page-slab', 'page-other', 'page-cpu'];
    const paths = ['depot-path', 'slab-path', 'pages-path', 'commit-path'];
    for (const group of [objects, pages, paths, ['ink', 'quiet', 'block']]) group.forEach((a, i) => group.slice(i + 1).forEach((b) => apart(a, b)));
    // A page's colour is no object's.
    if (who === 'everybody else') for (const page of pages) for (const object of objects) apart(page, object);
  }
  return wrong;
}
