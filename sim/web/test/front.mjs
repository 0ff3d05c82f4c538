// node front.mjs USLAB FOLDER: the pages of `uslab page` in Chromium, from disk: every demo beside the lab's own command, by mouse and
// keyboard; the machines; the race; the course; links; pictures at three widths into FOLDER.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { drive, view } from './browser.mjs';
import { course } from './course.mjs';

const [uslab, folder] = process.argv.slice(2);
const run = (command, ...args) => execFileSync(command, args, { maxBuffer: 1 << 28, stdio: ['ignore', 'pipe', 'inherit'] });
const demo = (name, ...commands) => JSON.parse(run(uslab, 'lab', 'demo', name, ...commands, '--json'));
const { length: written } = JSON.parse(run(uslab, 'page', join(folder, 'pages'), '--json'));
assert.equal(written, 4);
const file = resolve(folder, 'pages', 'index.html');
const address = pathToFileURL(file).href;
assert(statSync(file).size < 950_000);


await drive('front', async (openFile) => {
  const open = (hash, options) => openFile(file, hash, options);
  // --- three clicks: a magazine fills, a depot visit, a slab dies ---
  const page = await open();
  // A link is followed even if the page that plays writes its own address before the event.
  await page.evaluate(() => {
    location.hash = '#designs';
    history.replaceState(null, '', '#start&at=2');
  });
  await page.waitForFunction(() => location.hash === '#designs' && !document.querySelector('.door'));
  await page.goBack();
  await page.click('.door:has-text("Play with an allocator")');
  await page.click('.card:has-text("Magazines on four CPUs")');
  await page.click('.took button:has-text("A magazine fills")');
  await page.selectOption('select[aria-label="Speed"]', '4');
  // Each moment that is drawn, however slow the machine is.
  await page.evaluate(() => {
    window.seen = { filled: 0, depot: false, died: false, paths: [] };
    window.observer = new MutationObserver(() => {
      const { view: { caches: [cache], steps, shown: [shown] } } = window.uslab.view();
      const { seen } = window;
      seen.paths.push(...steps.map(({ path }) => path));
      seen.filled = Math.max(seen.filled, ...shown.cpus.flat().map(({ objects }) => objects));
      seen.depot ||= shown.shared.flat().some(({ objects }) => objects === 8);
      seen.died ||= cache.slabs_made > window.made + cache.full + cache.partial + cache.empty;
    });
    window.observer.observe(document.querySelector('.said'), { childList: true });
    const [{ slabs_made, full, partial, empty }] = window.uslab.view().view.caches;
    window.made = slabs_made - full - partial - empty;
  });
  await page.click('button[aria-label^="Play"]');
  await page.waitForFunction(() => window.seen.died);
  const seen = await page.evaluate(() => {
    window.observer.disconnect();
    return window.seen;
  });
  assert.equal(seen.filled, 16);
  assert(seen.depot);
  assert(seen.paths.includes('depot') && !seen.paths.includes('commit'), 'a depot visit is of class depot: tables are made while it warms up');
  await page.waitForFunction(() => document.querySelector('button[aria-label^="Play"]'));

  // --- by hand, from a moment in the midst of a line on: by mouse, by key, on an object ---
  await page.click('.took button >> nth=1');
  await page.locator('h2').first().click();
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowRight');
  const used = async () => (await view(page)).view.caches[0].used;
  const before = await view(page), first = before.view.caches[0].used;
  const does = async (act, change) => {
    const was = await view(page);
    await act();
    await page.waitForFunction((at) => window.uslab.view().at === at, was.at + 1);
    assert.equal((await view(page)).view.caches[0].used, was.view.caches[0].used + change);
    return (await view(page)).view.steps[0];
  };
  await does(() => page.click('button[aria-label="CPU 2: alloc"]'), 1);
  assert.equal((await does(() => page.keyboard.press('Digit3'), 1)).cpu, 3);
  assert.deepEqual((({ cpu, what, allocated_on }) => [cpu, what, allocated_on])(await does(() => page.click('button[aria-label="CPU 2: free"]'), -1)), [2, 'free', 2], 'its own object, if it has one');
  assert.equal((await does(() => page.keyboard.press('Shift+Digit3'), -1)).cpu, 3);
  const step = await does(() => page.click('button[aria-label="CPU 1: alloc"]'), 1);
  const [slab, index] = step.object;
  const place = await page.evaluate(([slab, index]) => window.uslab.stage().place(slab, index), [slab, index]);
  const stage = await page.locator('.stage').boundingBox();
  await page.mouse.move(stage.x + place.x, stage.y + place.y);
  assert.match(await page.textContent('.tip'), new RegExp(`Object ${index} of the slab at page ${slab}, in use`));
  assert.equal((await does(() => page.mouse.click(stage.x + place.x, stage.y + place.y), -1)).cpu, 1, 'an object is freed where it was allocated');
  // The same by keyboard: each object can be gone to, and freed.
  await does(() => page.keyboard.press('Digit1'), 1);
  await page.focus('.objects');
  await page.keyboard.press('Home');
  for (let i = 0; i < 400 && !/in use/.test(await page.textContent('.tip')); i++) await page.keyboard.press('ArrowRight');
  assert.match(await page.locator(`#${await page.getAttribute('.objects', 'aria-activedescendant')}`).textContent(), /in use/);
  await does(() => page.keyboard.press('Enter'), -1);
  const after = await view(page);
  assert.equal(await used(), first);
  const here = await page.evaluate(() => location.hash);
  const again = await open(here);
  await again.waitForFunction((at) => window.uslab.view().at === at, after.at);
  assert.deepEqual(await view(again), await view(page), 'the link is the moment');
  await again.context().close();
  // A design that there is not is refused in words, and nothing changes.
  await page.fill('input[aria-label="Design"]', 'slob');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('.problem').textContent.startsWith('unknown design `slob`'));
  await page.fill('input[aria-label="Design"]', 'sheaves:sheaf_capacity=8');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => window.uslab.view().view.shown[0].cpus[0].some(({ name }) => name.includes('sheaf')));
  await page.click('summary:has-text("The script")');
  await page.fill('textarea', 'cpus 2\ncache leaf 64\n1 alloc 3\n0 free 4');
  await page.click('text=run the script');
  await page.waitForFunction(() => document.querySelector('.problem').textContent.includes('only 3 objects of leaf are in use'));
  // Each moment is kept: a script that would be too many is refused, in a link, too.
  const long = ['cpus 1', 'cache leaf 64', '0 alloc 5001'];
  await page.fill('textarea', long.join('\n'));
  await page.click('text=run the script');
  await page.waitForFunction(() => document.querySelector('.problem').textContent.includes('5,001 operations'));
  const refused = await open(`#machine&${new URLSearchParams({ name: 'slab', do: long.join(';') })}`);
  await refused.waitForFunction(() => window.uslab.view()?.view);
  assert.match(await refused.textContent('.problem'), /5,001 operations: expected at most 5,000/);
  await refused.context().close();
  await page.fill('textarea', 'cpus 2\ncache leaf 64\n1 alloc 3');
  await page.click('text=run the script');
  await page.keyboard.press('Escape');
  await page.locator('h2').first().click();
  await page.keyboard.press('End');
  assert.equal((await view(page)).view.caches[0].used, 3);

  // A moment in the midst of any line can be gone on from.
  const lines = ['cpus 1', 'zone normal 4096', 'cache leaf 64', '0 alloc-pages 3 10', '# A mark', '0 free-pages 4 oldest', '0 alloc 3'];
  for (const [at, kept] of [[3, ['0 alloc-pages 3 3']], [13, [...lines.slice(3, 5), '0 free-pages 2 oldest']], [17, [...lines.slice(3, 6), '0 alloc 2']]]) {
    await page.goto(`${address}#machine&${new URLSearchParams({ name: 'slab', design: 'uslab', do: lines.join(';'), at })}`);
    await page.waitForFunction((at) => window.uslab.view()?.at === at, at);
    await page.click('button[aria-label="CPU 0: alloc"]');
    await page.waitForFunction((at) => window.uslab.view().at === at + 1, at);
    assert.equal(await page.inputValue('textarea'), [...lines.slice(0, 3), ...kept, '0 alloc'].join('\n'));
  }

  // --- every demo: its script as the lab's own command has it, step by step ---
  await page.goto(`${address}#play`);
  await page.waitForSelector('.cards');
  const demos = await page.locator('.card[href*="demo"]').evaluateAll((cards) => cards.map((card) => card.hash));
  assert(demos.length >= 12);
  for (const hash of demos) {
    const name = new URLSearchParams(hash.slice(1)).get('name');
    await page.goto(`${address + hash}&at=0`);
    await page.waitForFunction(() => window.uslab.view()?.command === null);
    const own = demo(name);
    for (const { command, ...scene } of own) {
      await page.keyboard.press('ArrowRight');
      assert.deepEqual(await view(page), { command, scene }, `${name}: ${command}`);
    }
    await page.keyboard.press('ArrowRight');
    assert.equal((await view(page)).command, own.at(-1).command, 'the end is the end');
    await page.keyboard.press('Home');
    // Each control once, by mouse; what was done is the same by hand.
    await page.click('text="clear"');
    const done = [];
    for (let i = 0; i < 12; i++) {
      const buttons = page.locator('.commands button');
      const count = await buttons.count();
      await buttons.nth((i * 5) % count).click();
      done.push((await view(page)).command);
    }
    const last = demo(name, ...done).at(-1);
    const { command, ...scene } = last;
    assert.deepEqual(await view(page), { command, scene }, `${name} by hand: ${done}`);
  }
  // Any size can be typed, a block is freed by a click on it, and what is no number is refused in words.
  await page.goto(`${address}#demo&name=tlsf&do=`);
  await page.waitForFunction(() => window.uslab.view()?.command === null);
  await page.fill('input[aria-label="Bytes"]', '777');
  await page.keyboard.press('Enter');
  const [{ command, ...scene }] = demo('tlsf', 'alloc 777');
  assert.deepEqual(await view(page), { command, scene });
  await page.locator('.part.used').first().click();
  assert.equal((await view(page)).command, 'free a');
  await page.fill('input[aria-label="Bytes"]', '-1');
  await page.keyboard.press('Enter');
  assert((await view(page)).scene.refused);
  await page.click('summary:has-text("table")');
  assert.equal(await page.locator('details table tr').count(), (await view(page)).scene.parts.length + 1);

  // --- latency: the recording, and says that it is one ---
  const recorded = JSON.parse(readFileSync(new URL('../../lab/data/latency.json', import.meta.url), 'utf8'));
  const { series } = recorded.parts.flatMap(({ chart }) => (chart?.title.startsWith('Allocations that took so long') ? [chart] : []))[0];
  await page.goto(`${address}#latency`);
  await page.waitForSelector('.latency svg');
  assert.deepEqual((await view(page)).rows.map(({ name, points }) => ({ name, points })), series);
  assert.ok((await page.textContent('main')).includes('Recorded natively, not in this page'));
  assert.ok((await page.textContent('main')).includes(recorded.machine.processor));
  assert.equal(await page.locator('.latency rect').count(), series.reduce((sum, { points }) => sum + points.length, 0));
  for (const at of [0, 333, 800, 1000]) {
    await page.getByLabel('Slower than').fill(String(at));
    const { from } = await view(page);
    for (const [i, { points }] of series.entries()) {
      const slow = points.reduce((sum, [ns, count]) => sum + (ns >= from ? count : 0), 0);
      const cell = await page.locator('main table tr').nth(i + 1).locator('td').last().textContent();
      assert.equal(cell.split(':')[0], slow.toLocaleString('en-US'));
      assert.equal(await page.locator('.latency svg').nth(i).locator('rect.slow').count(), points.filter(([ns]) => ns >= from).length);
    }
  }
  const was = (await view(page)).from;
  await page.keyboard.press('Home');
  await page.getByLabel('Slower than').blur();
  await page.keyboard.press('ArrowRight');
  assert.notEqual((await view(page)).from, was);

  // --- the race: as the lab's own requests ---
  await page.goto(`${address}#race&seed=9&at=200`);
  await page.waitForFunction(() => window.uslab.view()?.at === 200);
  const { race } = await view(page);
  for (const [name, scenes] of race.scenes) {
    const own = JSON.parse(run(uslab, 'lab', 'demo', name, '--random', '200', '--seed', '9', '--json'));
    assert.deepEqual(scenes.slice(1), own.map(({ command, ...scene }) => scene), name);
    assert.deepEqual(race.commands, own.map(({ command }) => command));
  }
  await page.fill('input[aria-label="Seed"]', '10');
  await page.keyboard.press('Enter');
  assert.equal((await view(page)).at, 0);
  assert.notDeepEqual((await view(page)).race.commands, race.commands);
  assert.match(await page.textContent('.copy code'), /--seed 10$/);
  const ten = await view(page);
  for (const seed of ['abc', '-1', '7.9', '4294967303']) {
    await page.fill('input[aria-label="Seed"]', seed);
    await page.keyboard.press('Enter');
    assert.match(await page.textContent('.problem'), new RegExp(`The seed ${seed}: expected`));
    assert.equal(await page.inputValue('input[aria-label="Seed"]'), '10');
    assert.deepEqual(await view(page), ten);
  }

  // --- the course, and the pages beside it ---
  const taken = await course(open, file, folder);
  for (const [from, beside] of [['play', 'A race that loom found'], ['start', 'Watch a kernel'], ['play', 'Scaling']]) {
    await page.goto(`${address}#${from}`);
    await page.click(`.card:has-text("${beside}")`);
    await page.waitForFunction(() => !document.querySelector('.card') && window.uslab);
    await page.evaluate(() => window.uslab.ready);
    await page.click('nav >> text=Start');
    await page.waitForSelector('.doors');
    assert.match(page.url(), /#start/);
  }

  // --- words, designs, a link that leads nowhere ---
  await page.click('nav >> text=Glossary');
  assert((await page.locator('.words dt').count()) > 20);
  await page.click('nav >> text=Designs');
  assert.equal(await page.locator('.words dt').count(), 8);
  await page.click('.words a >> nth=2');
  await page.waitForFunction(() => window.uslab.view()?.view);
  await page.goto(`${address}#demo&name=none`);
  await page.waitForSelector('.doors');

  // --- the first screen: it plays without a click; the stage has most of it; its sentence and its buttons are on it, too ---
  for (const [width, height] of [[1440, 900], [820, 1180], [390, 844]]) {
    for (const colorScheme of ['light', 'dark']) for (const hash of ['', '#machine&name=magazines']) {
      const own = await open(hash, { viewport: { width, height }, colorScheme });
      await own.waitForFunction(() => window.uslab.stage()?.drawn > 0);
      const where = `${hash || 'start'} at ${width}`;
      const { share, below, wide } = await own.evaluate(() => {
        const { width, height } = document.querySelector('.stage').getBoundingClientRect();
        return {
          share: width * height / (innerWidth * innerHeight), wide: document.documentElement.scrollWidth,
          below: Math.max(...Array.from(document.querySelectorAll('.player .said, .player .bar, .stage button'), (part) => part.getBoundingClientRect().bottom)),
        };
      });
      assert(share >= 0.6, `${where}: the stage has ${share.toFixed(2)} of the first screen`);
      assert(below <= height && wide <= width, `${where}: ${below} of ${height} pixels, ${wide} wide`);
      const { at } = await view(own);
      await own.waitForFunction((at) => window.uslab.view().at > at, at);
      await own.context().close();
    }
  }
  {
    // The same link is the same image, byte for byte: a drawing, pixels, and what the last operation moved.
    const images = [], moment = '#start&at=111';
    for (let i = 0; i < 2; i++) {
      const own = await open(moment);
      await own.waitForFunction(() => window.uslab.stage()?.drawn > 0);
      images.push(await own.evaluate(async () => {
        const stage = window.uslab.stage(), blobs = [new Blob([stage.svg('A sentence.')]), await stage.png('A sentence.'), await stage.film('A sentence.')];
        return Promise.all(blobs.map(async (blob) => [blob.size, Array.from(new Uint8Array(await crypto.subtle.digest('SHA-256', await blob.arrayBuffer()))).join()]));
      }));
      await own.context().close();
    }
    assert.deepEqual(images[0], images[1]);
    assert(images[0].every(([bytes]) => bytes > 10_000 && bytes < 1_000_000), `${images[0].map(([bytes]) => bytes)}`);
  }
  {
    // A lecturer's screen: it fills the window, and its type is larger.
    const own = await open('#start&at=111');
    await own.keyboard.press('p');
    assert(await own.evaluate(() => document.querySelector('.lecture') && window.uslab.stage().scale > 1));
    await own.keyboard.press('p');
    assert(await own.evaluate(() => !document.querySelector('.lecture') && window.uslab.stage().scale === 1));
    await own.context().close();
  }
  {
    // Without motion it is the same story, in steps.
    const own = await open('', { reducedMotion: 'reduce' });
    await own.waitForFunction(() => window.uslab.view().view.steps.some(({ path }) => path === 'pages'));
    assert.equal(await own.evaluate(() => window.uslab.stage().frames.length), 0);
    await own.context().close();
  }

  // --- pictures ---
  const pictures = [['start', '#start&at=113'], ['play', '#play'], ['magazines', '#machine&name=magazines&at=100'], ['buddy', '#demo&name=buddy&at=3'], ['race', '#race&at=120'], ['latency', '#latency'],
    ['course', '#course'], ['lab', '#lab&name=depot'], ['lab-pages', '#lab&name=pages'], ['lab-race', '#lab&name=race'], ['lecturer', '#lecturer']];
  for (const width of [390, 820, 1440])
    for (const colorScheme of ['light', 'dark']) {
      const own = await open('', { viewport: { width, height: 900 }, colorScheme });
      await own.evaluate((kept) => localStorage.setItem('uslab course', kept), taken);
      await own.reload();
      await own.evaluate(() => window.uslab.ready);
      for (const [name, hash] of pictures) {
        await own.goto(address + hash);
        const wide = await own.evaluate(() => document.documentElement.scrollWidth);
        assert(wide <= width, `${name} is ${wide} pixels wide in ${width}`);
        await own.screenshot({ path: join(folder, `${name}-${width}-${colorScheme}.png`), fullPage: true });
      }
      await own.context().close();
    }
  console.log(`PAGE | ${demos.length} demos as the lab's own, ${statSync(file).size} bytes`);
});
