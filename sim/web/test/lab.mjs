// node lab.mjs USLAB FOLDER: the drawings of the demos' data structures compared with the lab's own structures; first screens; steps by
// mouse, by key and in time; random scripts; pictures at three widths into FOLDER.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { drive, look, until, view } from './browser.mjs';

const [uslab, folder] = process.argv.slice(2);
const run = (...args) => JSON.parse(execFileSync(uslab, [...args, '--json'], { maxBuffer: 1 << 28, stdio: ['ignore', 'pipe', 'inherit'] }));
const demo = (name, ...commands) => run('lab', 'demo', name, ...commands);
const pages = join(folder, 'lab-pages');
execFileSync(uslab, ['page', pages], { stdio: ['ignore', 'ignore', 'inherit'] });
const file = resolve(pages, 'index.html'), address = pathToFileURL(file).href;

const grouped = (n) => n.toLocaleString('en-US');
/** What a drawing's boxes say of themselves. */
const titles = (page) => page.$$eval('.shape .box title', (all) => all.map((title) => title.textContent));
const lit = (page) => page.$$eval('.shape .bit', (all) => all.map((bit) => [bit.textContent, bit.classList.contains('lit')]).filter(([text]) => text === '0' || text === '1'));

/** What a drawing must say of each part of a data structure. */
const WANTED = {
  tree: ({ unit, lists }) => lists.flatMap((list, order) => list.map((at) => `${grouped(unit * 2 ** order)} bytes at ${grouped(at)}, free`)),
  grid: ({ rows }) => rows.flatMap(({ cells }) => cells.flatMap(({ from, list }) => [`list of ${grouped(from)}: ${list.length ? `${list.length} free` : 'empty'}`,
    ...list.map(({ at, bytes }) => `${grouped(bytes)} bytes at ${grouped(at)}`)])),
  chunks: ({ bytes, chunks }) => chunks.flatMap(({ at, list }) => list.map((slot) => `slot ${slot} of chunk ${at / bytes}: free`)),
  chain: ({ list, end }) => list.map((slot, i) => `slot ${slot}: free, its link is ${list[i + 1] ?? end ?? 'null'}`),
  slots: ({ handles, slots }) => [...handles.map(({ name, slot, generation, finds }) => `handle ${name}: slot ${slot}, generation ${generation}, ${finds === null ? 'stale' : `finds ${finds}`}`),
    ...slots.map(({ object, retired, generation }, n) => `slot ${n}: ${retired ? 'retired' : object ? `in use by ${object}` : generation ? 'free' : 'never used'}`)],
  packed: ({ values, holes }) => [...values.map((name, place) => `place ${place}: ${name}`), ...holes.map((name, place) => `place ${place}: ${name ?? 'a hole'}`)],
  lines: ({ arrays, names }) => arrays.flatMap(({ fields, used, loaded }) => fields.map((field, n) => `${names[field]}, ${!loaded[Math.floor(n / 16)] ? 'not loaded' : used[n] ? 'loaded and used' : 'loaded'}`)),
};

await drive('lab', async (openFile) => {
  const open = (hash, options) => openFile(file, hash, options);
  const page = await open('#play', { reducedMotion: 'reduce' });
  const names = await page.locator('.card[href*="demo"]').evaluateAll((cards) => cards.map((card) => new URLSearchParams(card.hash.slice(1)).get('name')));
  const seen = new Set();
  for (const name of names) {
    // --- the first screen: a command with its steps, a drawing, nothing empty ---
    await page.goto(`${address}#demo&name=${name}`);
    await page.waitForFunction((name) => location.hash.includes(name) && window.uslab.view()?.command, name);
    const { command, scene } = await view(page);
    assert((await page.locator('.shape').boundingBox()).height > 90, `${name}: the drawing`);
    assert((await page.locator('.shape :is(.box, .part)').count()) > 3, `${name}: the drawing has parts`);
    assert(scene.structure.steps.length > 0, `${name}: ${command} has steps`);
    // --- each scene of the script: the drawing has what the lab's structure has, and the steps are the lab's ---
    assert.match(await page.textContent('.claim'), /^A text on allocators says: “.+\.” It (holds|depends|does not hold)\. \([A-Z]\d+ in STUDY\.md\)$/);
    const script = demo(name);
    for (let at = 1; at <= script.length; at++) {
      await page.goto(`${address}#demo&name=${name}&at=${at}`);
      await page.waitForFunction(([name, at]) => location.hash === `#demo&name=${name}&at=${at}` && window.uslab.view(), [name, at]);
      const { structure } = script[at - 1], { shape } = structure;
      seen.add(shape.is);
      assert.deepEqual((await view(page)).scene.structure, structure, `${name} ${at}`);
      assert.deepEqual(await page.$$eval('.steps button', (all) => all.map((step) => step.textContent)), structure.steps.map(({ said }) => said));
      assert.equal(await page.textContent('pre[aria-label="The data structure as text"]'), structure.text.join('\n'));
      const found = await titles(page), left = [...found];
      for (const title of WANTED[shape.is]?.(shape) ?? []) {
        const place = left.indexOf(title);
        assert(place >= 0, `${name} after ${script[at - 1].command}: ${title} is not in ${found}`);
        left.splice(place, 1);
      }
      if (shape.is === 'head') assert.equal(await page.locator(`.shape >> text="head ${grouped(shape.head)}"`).count(), 1);
      if (shape.is === 'lanes') {
        assert.equal(await page.locator('.shape .part').count(), shape.lanes.flatMap(({ parts }) => parts).length);
        const words = await page.$$eval('.shape text', (all) => all.map((text) => text.textContent));
        for (const { name, says } of shape.lanes) assert(words.includes(`${name}: ${says}`), `${name} after ${script[at - 1].command}: ${words}`);
        for (const { name: mark } of shape.marks) assert(words.includes(mark), mark);
      }
      if (shape.is === 'list') assert.equal(await page.locator('.shape .arrow').count(), shape.blocks.length + (shape.blocks.length ? 1 : 0));
    }
  }
  assert.equal(seen.size, 10, `${[...seen]}`);

  // --- buddy: the addresses of a block and its buddy differ in the bit of the size ---
  const script = demo('buddy');
  for (const [at, { structure: { steps } }] of script.entries()) for (const [i, { on }] of steps.entries()) {
    if (on.is !== 'neighbour') continue;
    await page.goto(`${address}#demo&name=buddy&at=${at + 1}`);
    await page.waitForFunction((at) => location.hash.endsWith(`at=${at}`), at + 1);
    await page.click(`.steps li:nth-child(${i + 1}) button`);
    const bits = await lit(page), half = bits.length / 2;
    const number = (part) => parseInt(part.map(([bit]) => bit).join(''), 2);
    assert.deepEqual([number(bits.slice(0, half)), number(bits.slice(half))], [on.at ^ on.bytes, on.at]);
    assert.deepEqual(bits.map(([, lit], n) => (lit ? n % half : null)).filter((n) => n !== null), [half - 1 - Math.log2(on.bytes), half - 1 - Math.log2(on.bytes)]);
  }

  // --- TLSF: each scan lights the bits that it read, and the bit that it found ---
  await page.goto(`${address}#demo&name=tlsf`);
  await page.waitForFunction(() => location.hash.includes('tlsf'));
  const { scene: { structure: { steps } } } = await view(page);
  const scans = steps.flatMap(({ on }, i) => (on.is === 'word' ? [[on, i]] : []));
  assert.equal(scans.length, 3);
  for (const [on, i] of scans) {
    await page.click(`.steps li:nth-child(${i + 1}) button`);
    assert.equal(await page.locator('.shape .bit.lit').count(), on.found === null ? 0 : 1, steps[i].said);
    assert((await page.locator('.shape .bit.scan').count()) > 0, steps[i].said);
  }
  // By key: a step is a button.
  await page.focus('.steps li:first-child button');
  await page.keyboard.press('Enter');
  assert.equal(await page.textContent('.steps [aria-current]'), steps[0].said);

  // --- a seed makes a script; its commands in the terminal do the same ---
  const scripts = [];
  for (const name of names) {
    await page.goto(`${address}#demo&name=${name}&at=0`);
    await page.waitForFunction((name) => location.hash.includes(`name=${name}&`), name);
    await page.fill('input[aria-label="Seed"]', '9');
    await page.click('text="random script"');
    await page.locator('h2').first().click();
    await page.keyboard.press('End');
    const commands = await page.$$eval('.took button', (all) => all.map((step) => step.textContent));
    assert.equal(commands.length, 12);
    scripts.push(commands.join());
    const { command, ...scene } = demo(name, ...commands).at(-1);
    assert.deepEqual(await view(page), { command, scene }, name);
    assert.equal(await page.textContent('.copy code'), ['uslab lab demo', name, ...commands.map((own) => `'${own}'`)].join(' '));
  }
  await page.fill('input[aria-label="Seed"]', '10');
  await page.keyboard.press('Enter');
  assert.notEqual(await page.$$eval('.took button', (all) => all.map((step) => step.textContent).join()), scripts.at(-1));
  const before = await view(page);
  await page.fill('input[aria-label="Seed"]', 'x');
  await page.keyboard.press('Enter');
  assert.match(await page.textContent('.problem'), /The seed x: expected/);
  assert.deepEqual(await view(page), before);

  // --- with motion: the steps of the first screen play once; the race plays ---
  const moves = await open('#demo&name=buddy');
  const shown = () => moves.$$eval('.steps li', (all) => all.filter((step) => !step.classList.contains('later')).length);
  const all = (await view(moves)).scene.structure.steps.length;
  assert((await shown()) < all);
  // The memory is as it was before the command, until a step changes it. What plays can be paused, and goes on.
  const used = () => moves.locator('.shape .part.used').count(), toggle = moves.locator('.stepper .main');
  assert.equal(await used(), 0);
  assert.match(await toggle.getAttribute('aria-label'), /^Pause/);
  await toggle.click();
  assert.match(await toggle.getAttribute('aria-label'), /^Play/);
  const paused = await shown();
  await moves.waitForTimeout(1500);
  assert.deepEqual([await shown(), paused < all ? await used() : 0], [paused, 0]);
  await toggle.click();
  await moves.waitForFunction(() => !document.querySelector('.steps .later'), null, { timeout: 30_000 });
  assert.equal(await used(), 1);
  assert.equal((await view(moves)).scene.structure.steps.length, all, 'the command is the same');
  await moves.goto(`${address}#race`);
  await until(moves, (own) => own?.at > 20);
  assert(await moves.$$eval('canvas.history', (all) => all.length === 4 && all.every((own) => {
    const { data } = own.getContext('2d').getImageData(0, 0, Math.floor(own.width / 10), own.height);
    return data.some((byte, i) => i % 4 === 3 && byte > 0);
  })), 'each memory is drawn');

  // --- side by side: what is counted is what the command prints for the same stream ---
  const sides = await open('#compare&at=0', { reducedMotion: 'reduce' });
  const designs = async () => (await view(sides)).sides.map(({ design }) => design);
  const numbers = () => sides.$$eval('.side', (all) => all.map((side) => Array.from(side.querySelectorAll('.counts b'), (b) => Number(b.textContent.replaceAll(',', '')))));
  const total = ({ depot, lists, zone }, of) => depot[of] + lists[of] + zone[of];
  const compare = async () => {
    const [verb, ...args] = (await sides.textContent('.copy code')).replace(/^uslab /, '').split(' '), { curves } = run(verb, ...args);
    const { work, sides: shown } = await view(sides);
    assert.deepEqual(shown.map(({ design, outcome }) => [design, outcome]), curves.map(({ design, points: [point] }) => [design, point]), JSON.stringify(work));
    await sides.locator('h2').first().click();
    await sides.keyboard.press('End');
    assert.deepEqual((await numbers()).map(([operations, locks, lines]) => [operations, locks, lines]),
      curves.map(({ points: [at] }) => [at.operations, total(at, 'taken'), Math.round(at.lines_per_operation * at.operations)]));
    for (const [i, { costs }] of (await view(sides)).sides.entries()) {
      const [at] = curves[i].points;
      assert.equal(costs.contended, total(at, 'contended'));
      assert(Math.abs(costs.waited - total(at, 'waited_ns')) < 1e-6);
      assert.equal(costs.pages % at.slabs, 0, 'pages of slabs of one order');
    }
    assert.match(await sides.textContent('.said'), /^All are finished: /);
  };
  await compare();
  assert.equal((await designs()).length, 3);
  // Every design, every program, by mouse; another stream by key and by mouse.
  const options = (label) => sides.$$eval(`select[aria-label="${label}"] option`, (all) => all.map(({ value }) => value));
  const changes = async (act, of) => {
    const before = JSON.stringify(of(await view(sides)));
    await act();
    await until(sides, (own) => JSON.stringify(of(own)) !== before);
  };
  const first = ({ sides: [own] }) => own.design, seed = ({ work: { seed } }) => seed, count = ({ sides: all }) => all.length;
  for (const design of await options('Design 1')) {
    if (design !== (await designs())[0]) await changes(() => sides.selectOption('select[aria-label="Design 1"]', design), first);
    await compare();
  }
  await sides.click('.menu summary');
  for (const workload of (await options('Program')).slice(1)) {
    await changes(() => sides.selectOption('select[aria-label="Program"]', workload), ({ work: own }) => own.workload);
    await compare();
  }
  await changes(() => sides.click('text="new stream"'), ({ work: own }) => own.workload);
  await changes(() => sides.keyboard.press('n'), seed);
  await compare();
  await changes(() => sides.keyboard.press('1'), first);
  await changes(() => sides.keyboard.press('t'), count);
  await changes(() => sides.click('.menu button:has-text("three designs")'), count);
  await sides.fill('input[aria-label="Seed"]', '4711');
  await changes(() => sides.keyboard.press('Enter'), seed);
  await sides.fill('input[aria-label="Seed"]', 'x');
  await sides.keyboard.press('Enter');
  assert.match(await sides.textContent('.problem'), /The seed x: expected/);
  // At any time one CPU holds a lock, and a waiter waits for a lock that another CPU holds.
  await sides.locator('h2').first().click();
  await sides.keyboard.press('Home');
  let waited = 0;
  for (let n = 0; n < 150; n++) {
    await sides.keyboard.press('ArrowRight');
    for (const { crew } of (await view(sides)).sides) for (const { waits, holds } of crew) {
      for (const lock of waits ? [...holds, waits] : holds) assert.equal(crew.filter((own) => own.holds.includes(lock)).length, 1, JSON.stringify(crew));
      waited += waits !== null;
    }
  }
  assert(waited > 0);
  // The link keeps the designs, the stream and the time.
  await sides.keyboard.press('l');
  const [copied] = await sides.evaluate(() => window.copied), kept = await view(sides);
  const again = await open(new URL(copied).hash);
  assert.deepEqual(await view(again), kept);
  await again.context().close();
  // It plays without a click, and what is wrong with a link is shown.
  const plays = await open('#compare&designs=nosuch');
  assert.match(await plays.textContent('.problem'), /unknown design `nosuch`/);
  const from = (await view(plays)).at;
  await until(plays, (own) => own.at > from + 2);
  await plays.context().close();
  await look(sides, folder, 'compare');
  await sides.context().close();

  // --- no label covers another, after each step ---
  for (const name of names) {
    await page.goto(`${address}#demo&name=${name}`);
    await page.waitForFunction((name) => location.hash.includes(`name=${name}&`), name);
    for (const width of [390, 820, 1440]) {
      await page.setViewportSize({ width, height: 900 });
      const covered = await page.evaluate(async () => {
        const found = [], count = document.querySelectorAll('.steps button').length;
        for (let step = 0; step < count; step++) {
          document.querySelectorAll('.steps button')[step].click();
          await new Promise((then) => requestAnimationFrame(() => setTimeout(then)));
          const drawing = document.querySelector('.shape').getBoundingClientRect();
          const labels = Array.from(document.querySelectorAll('.shape text'), (label) => [label.textContent, label.getBoundingClientRect()]).filter(([text]) => text.trim());
          for (const [i, [text, one]] of labels.entries()) {
            if (one.left < drawing.left - 1 || one.right > drawing.right + 1) found.push(`step ${step + 1}: ${text} is cut off`);
            for (const [other, two] of labels.slice(i + 1)) {
              const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left), high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
              if (wide > 1.5 && high > 3.5) found.push(`step ${step + 1}: ${text} and ${other}`);
            }
          }
        }
        return found;
      });
      assert.deepEqual(covered, [], `${name} at ${width}`);
    }
  }

  for (const name of names) {
    await page.goto(`${address}#demo&name=${name}`);
    await page.waitForFunction((name) => location.hash.includes(`name=${name}&`), name);
    await look(page, folder, `demo-${name}`);
  }
});
