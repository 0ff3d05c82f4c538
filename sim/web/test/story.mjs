// node story.mjs USLAB FOLDER: the pages of a counter-example that loom found and of a violation under load, in Chromium.
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { drive, look, until, view } from './browser.mjs';

const [uslab, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const kept = new URL('../../data/story.json', import.meta.url).pathname;
const story = JSON.parse(readFileSync(kept, 'utf8'));
const [example, violation] = ['story.html', 'violation.html'].map((name) => join(folder, name));
// As somebody types it: a page shows the command line that it was made with.
const cwd = new URL('../../data/', import.meta.url).pathname;
execFileSync(uslab, ['story', 'story.json', '--html', example], { cwd, stdio: 'ignore' });
const stress = ['stress', '--ops', '200000', '--seconds', '60', '--seed', '5', '--threads', '8', '--leak', 'raw-64', '--html', violation];
assert.equal(spawnSync(uslab, stress, { stdio: 'ignore' }).status, 1);

const text = (page, id) => page.textContent(`#${id}`);
const at = async (page) => (await view(page)).step;
const last = story.steps.length;
const fails = last + 1;

await drive('story', async (open) => {
  const page = await open(example);
  assert.equal(await at(page), fails, 'without a link it is the failure');
  assert.match(await text(page, 'said'), new RegExp(`this check failed: “${story.end}”`));

  // --- each step says what the story says, and what is known adds up ---
  const known = new Map();
  for (const [i, { thread, role, did, changes }] of story.steps.entries()) {
    await page.evaluate((n) => window.uslab.step(n), i + 1);
    const said = await text(page, 'said');
    for (const part of [`thread ${thread}, ${role}`, did]) assert(said.includes(part), said);
    for (const { part, after } of changes) known.set(part, after);
    const { state } = await view(page);
    assert.deepEqual(new Map(state.map(({ part, after }) => [part, after])), known);
    assert.deepEqual(state.filter(({ changed }) => changed).map(({ part }) => part), changes.map(({ part }) => part));
    assert.equal(await page.locator('#state tr.changed').count(), changes.length);
    for (const { before, after } of changes) if (before) assert((await text(page, 'state')).includes(`${before} → ${after}`));
  }

  // --- every button and key ---
  const moves = { ArrowRight: [3, 4], ArrowLeft: [3, 2], Home: [5, 1], End: [2, last], f: [2, fails] };
  const only = { ArrowDown: [3, 4], ArrowUp: [3, 2] };
  const check = async (go, from, to, what) => {
    await page.evaluate((n) => window.uslab.step(n), from);
    await page.locator('h1').click();
    await go();
    assert.equal(await at(page), to, what);
    assert.equal(await page.locator('.step[aria-current=step]').getAttribute('data-step'), String(to));
  };
  for (const [key, [from, to]] of Object.entries({ ...moves, ...only })) await check(() => page.keyboard.press(key), from, to, key);
  for (const [key, [from, to]] of Object.entries(moves)) await check(() => page.click(`button[data-key="${key}"]`), from, to, `button ${key}`);
  await check(() => page.keyboard.press('ArrowLeft'), 1, 1, 'nothing is before the first');
  await check(() => page.keyboard.press('ArrowRight'), fails, fails, 'nothing is behind the failure');
  await check(() => page.click('.step[data-step="6"]'), 1, 6, 'a click on a step');
  await check(async () => { await page.locator('.step[tabindex="0"]').focus(); await page.keyboard.press('ArrowDown'); await page.keyboard.press('ArrowDown'); }, 1, 3, 'from within the list');
  await page.fill('#step', '9');
  await page.keyboard.press('Enter');
  assert.equal(await at(page), 9);
  const back = page.locator('#state button').first();
  const to = Number((await back.textContent()).match(/\d+/)[0]);
  await back.click();
  assert.equal(await at(page), to, 'a part leads to the step that changed it');

  // --- play, to the end; below from one step to another ---
  await page.selectOption('#speed', '0.5');
  await page.locator('h1').click();
  await page.keyboard.press('f');
  await page.keyboard.press(' ');
  assert.deepEqual([await at(page), (await view(page)).playing], [1, true], 'from the failure it begins anew');
  await page.keyboard.press(' ');
  assert.deepEqual(await page.$$eval('#speed option', (all) => all.map(({ value }) => value)), ['0.5', '1', '2'], 'fifteen steps are soon over');
  await page.selectOption('#speed', '2');
  await page.locator('h1').click();
  await page.keyboard.press(' ');
  await until(page, (view) => view.step === fails && !view.playing);

  // --- steps that are left out are passed over ---
  const numbers = (which) => [...story.steps.flatMap((step, i) => (which(step) ? [i + 1] : [])), fails];
  for (const [filter, which] of [
    ['changed', ({ changes }) => changes.length], ['actor:1', ({ thread }) => thread === '1'], ['thing:@1', ({ changes }) => changes.some(({ thing }) => thing === 1)], ['all', () => true],
  ]) {
    await page.selectOption('#filter', filter);
    const { shown } = await view(page);
    assert.deepEqual(shown, numbers(which), filter);
    assert.equal(await page.locator('.step:visible').count(), shown.length);
    await page.locator('h1').click();
    await page.keyboard.press('Home');
    for (const n of shown) {
      assert.equal(await at(page), n, filter);
      await page.keyboard.press('ArrowRight');
    }
  }

  // --- the link ---
  await page.selectOption('#filter', 'actor:1');
  await page.click('.step[data-step="7"]');
  await page.keyboard.press('l');
  await page.click('button[data-key="l"]');
  const [link, again] = await page.evaluate(() => window.copied);
  assert.equal(link, again);
  const restored = await open(example, new URL(link).hash);
  assert.deepEqual(await view(restored), await view(page));
  await restored.evaluate(() => { location.hash = '#step=2'; });
  await until(restored, (view) => view.step === 2 && view.filter === 'all');
  for (const [hash, to] of [['#step=99', fails], ['#step=x&show=actor:9', 1], ['#step=-3', 1]]) {
    const odd = await open(example, hash);
    assert.deepEqual([(await view(odd)).step, (await view(odd)).filter], [to, 'all'], hash);
    await odd.context().close();
  }

  // --- the command line prints the step ---
  await page.evaluate(() => window.uslab.step(10));
  await page.keyboard.press('c');
  await page.click('button[data-key="c"]');
  const commands = await page.evaluate(() => window.copied.slice(-2));
  assert.deepEqual(commands, ['uslab story story.json --step 10', commands[0]]);
  assert(execFileSync(uslab, commands[0].split(' ').slice(1), { cwd }).toString().includes(story.steps[9].did));
  await page.keyboard.press('f');
  assert.equal(await text(page, 'command'), 'uslab story story.json');

  // --- the table ---
  await page.click('#twin summary');
  await page.waitForSelector('#twin tbody tr');
  const rows = await page.$$eval('#twin tbody tr', (all) => all.map((row) => row.textContent));
  assert.equal(rows.length, last);
  story.steps.forEach(({ did }, i) => assert(rows[i].includes(did), rows[i]));
  await page.click('#twin summary');
  await page.selectOption('#filter', 'all');
  await page.evaluate(() => window.uslab.step(7));
  await look(page, folder, 'story');

  // --- atomics, threads that move, who waits, and a text that is no markup ---
  const made = {
    version: 1, title: 'made </script><b>', end: 'a <i>deadlock</i>', waiting: [{ thread: '2', lock: 'lock 1 (Depot)', at: 'lib.rs:7' }],
    steps: [
      { thread: '0', role: 'CPU 0', did: 'stores 1 to atomic 1 (Release) at lib.rs:1', changes: [{ thing: 0, part: 'atomic 1', before: null, after: '1' }] },
      { thread: '1', role: 'CPU 0', did: 'changes atomic 1 from 1 to 2 by swap (AcqRel) at lib.rs:2', changes: [{ thing: 0, part: 'atomic 1', before: '1', after: '2' }] },
      { thread: '1', role: 'CPU 1', did: 'pops <b>2</b>', changes: [{ thing: 1, part: 'top', before: null, after: '<i>' }, { thing: 2, part: 'top', before: null, after: '9' }] },
      ...Array.from({ length: 60 }, (_, i) => ({ thread: '0', role: 'CPU 0', did: `looks again, ${i}`, changes: [] })),
    ],
  };
  const [made_json, made_page] = ['made.json', 'made.html'].map((name) => join(folder, name));
  writeFileSync(made_json, JSON.stringify(made));
  execFileSync(uslab, ['story', made_json, '--html', made_page], { stdio: 'ignore' });
  const odd = await open(made_page);
  assert.equal(await odd.locator('main b, main i', { hasText: /^(2|deadlock)$/ }).count(), 0);
  assert.match(await text(odd, 'title'), /^made <\/script><b>; 63 steps of 3 threads$/);
  assert(await odd.locator('#steps-scroll').evaluate((list) => list.scrollHeight > 2 * list.clientHeight));
  const inView = () => odd.locator('.step[aria-current]').evaluate((row) => {
    const [a, b] = [row.getBoundingClientRect(), document.getElementById('steps-scroll').getBoundingClientRect()];
    return a.top >= b.top && a.bottom <= b.bottom + 1;
  });
  for (const key of ['Home', 'End', 'f', 'ArrowLeft']) {
    await odd.keyboard.press(key);
    assert(await inView(), `${key}: the step is in view`);
  }
  await odd.keyboard.press('f');
  assert.match(await text(odd, 'state'), /thread 2 waits for lock 1 \(Depot\) at lib.rs:7/);
  assert.deepEqual((await view(odd)).state.map(({ part, after }) => [part, after]), [['atomic 1', '2'], ['top', '<i>'], ['top', '9']]);
  for (const name of ['@1 top', '@2 top']) assert((await text(odd, 'state')).includes(name), name);
  assert(await odd.locator('.step[data-step="3"] .who').isVisible(), 'who moves says where it is');
  // It plays long enough to be stopped on the way.
  for (const toggle of [() => odd.keyboard.press(' '), () => odd.click('#play')]) {
    await odd.evaluate(() => window.uslab.step(2));
    await odd.selectOption('#speed', '5');
    await odd.locator('h1').click();
    await toggle();
    assert.equal(await odd.getAttribute('#play', 'aria-label'), 'Pause');
    await until(odd, (view) => view.step > 4);
    await toggle();
    const { step, playing } = await view(odd);
    assert.deepEqual([playing, await odd.getAttribute('#play', 'aria-label')], [false, 'Play']);
    await odd.evaluate(() => new Promise((then) => setTimeout(then, 150)));
    assert.equal(await at(odd), step);
  }
  await odd.selectOption('#filter', 'thing:atomic 1');
  assert.deepEqual((await view(odd)).shown, [1, 2, 64]);
  await odd.selectOption('#filter', 'actor:2');
  assert.deepEqual((await view(odd)).shown, [64], 'it only waits');

  // --- a violation under load ---
  const own = await open(violation);
  const carried = JSON.parse(await own.textContent('#story'));
  const about = carried.steps.flatMap(({ changes }, i) => (changes.some(({ thing }) => thing === carried.about) ? [i + 1] : []));
  assert(about.length > 0);
  assert.equal(await own.locator('.step.own').count(), about.length);
  assert.match(await text(own, 'said'), /no thread holds 0x/);
  await own.selectOption('#filter', `thing:@${carried.about}`);
  const { shown, last: end } = await view(own);
  assert.deepEqual(shown, [...about, end]);
  await own.locator('h1').click();
  await own.keyboard.press('Home');
  assert.equal(await at(own), about[0]);
  assert.match(await text(own, 'said'), /★/);
  assert.match(await text(own, 'state'), /★/);
  await own.selectOption('#filter', 'all');
  await own.evaluate((n) => window.uslab.step(n), about.at(-1));
  await look(own, folder, 'violation');
});
