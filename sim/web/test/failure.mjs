// node failure.mjs FOLDER: the page of a failing step in Chromium, on moments that are written here: a machine's and a memory's.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { drive, look, view } from './browser.mjs';

const [folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const template = readFileSync(new URL('../built/failure.html', import.meta.url), 'utf8');
assert.equal(template.split('{failure}').length, 2);

/** A slab of eight objects, of which so many are in use; CPU 0 holds two. */
const moment = (operation, used) => ({
  operation, time_ns: 1000 * operation, failed: 0,
  steps: operation ? [{ cpu: 1, cache: 0, object: [64, used - 1], path: operation > 2 ? 'slab' : 'cpu', sentence: `CPU 1 allocates object ${used} <b>.`, did: [], what: 'alloc' }] : [],
  caches: [{ name: 'node', served: operation, size: 512, order: 0, per_slab: 8, capacity: 4, used, in_magazines: 2, in_depot: 0,
    free_in_slabs: 6 - used, full: 0, partial: 1, empty: 0, depot_exchanges: 0, slabs_made: 1 }],
  shown: [{ cache: 0, cpus: [[{ name: 'stack', objects: 2, room: 4, places: [[64, used], [64, used + 1]] }], [{ name: 'stack', objects: 0, room: 4, places: [] }]], shared: [[]],
    slabs: [{ page: 64, list: 'partial', objects: `${'u'.repeat(used)}aa`.padEnd(8, '.') }] }],
  pages: { managed: 1024, slab: 1, large: 0, blocks: 0, per_cpu: 3, free: 20, uncommitted: 1000, orders: [[1, 0, 0], [0, 0, 1]], uncommitted_orders: [0, 0], cpus: [[1, 1], [0, 0]], depot: [0, 0] },
});
/** 512 bytes in blocks, of so many bytes each and with a name if they are in use. */
const scene = (said, ...blocks) => {
  let end = 0;
  const parts = blocks.map(([bytes, block]) => ({ at: (end += bytes) - bytes, bytes, ...(block ? { is: 'used', block } : { is: 'free' }) }));
  const free = parts.filter(({ is }) => is === 'free').map(({ bytes }) => bytes);
  return { said, refused: false, facts: [['blocks in use', String(parts.length - free.length)]], holes: { count: free.length, largest: Math.max(...free), total: free.reduce((a, b) => a + b, 0) }, parts };
};
const machine = { lab: 'depot-policy', title: 'a </script> of its own', wrong: 'object 3 of slab 64 has two owners', at: 2, object: [64, 2], blocks: [], cpus: 2, caches: ['node'],
  views: [moment(7, 1), moment(8, 2), moment(9, 3), moment(10, 4)], scenes: [] };
const memory = { lab: 'merge', title: 'merge.rs', wrong: 'the blocks of 128 bytes at 0 and 128 are buddies, both free, and not merged', at: 4, object: null, blocks: [0, 128], cpus: 0, caches: [], views: [],
  scenes: [scene('', [512]), scene('Block a has 128 bytes.', [128, 'a'], [128], [256]), scene('Block b has 128 bytes.', [128, 'a'], [128, 'b'], [256]),
    scene('Block a is freed.', [128], [128, 'b'], [256]), scene('Block b is freed.', [128], [128], [256])] };
const write = (name, failure) => {
  const file = join(folder, name);
  writeFileSync(file, template.replace('{failure}', () => JSON.stringify(failure).replaceAll('<', '\\u003c')));
  return file;
};

await drive('failure', async (open) => {
  const text = (page, selector) => page.textContent(selector);
  const alerts = (page) => page.locator('[role=alert]').allTextContents();
  const at = async (page) => (await view(page)).at;

  const page = await open(write('failure-machine.html', machine));
  assert.deepEqual(await view(page), { at: 2, last: 3, fails: 2 }, 'it opens at the failure');
  assert.match(await text(page, '#title'), /a <\/script> of its own; 4 moments of lab depot-policy/);
  for (const [i, { operation, steps, caches }] of machine.views.entries()) {
    await page.keyboard.press('Home');
    for (let n = 0; n < i; n++) await page.keyboard.press('ArrowRight');
    assert.equal(await at(page), i);
    assert.equal(await text(page, '#said'), `${steps[0].path}${steps[0].sentence}`);
    assert.deepEqual(await alerts(page), i === machine.at ? [`✗ Wrong here: ${machine.wrong}`] : []);
    assert.equal(await text(page, '#wrong'), `✗ ${i === machine.at ? 'Wrong here' : 'Moment 3'}: ${machine.wrong}`, 'it is always said');
    assert((await text(page, '#picture')).includes(`${caches[0].used} in use`));
    assert.match(await page.locator('.stage [aria-current]').textContent(), /^CPU 1/);
    assert.equal(await page.evaluate(() => location.hash), `#moment=${i + 1}`);
    assert.equal(await text(page, '.of'), `moment ${i + 1} of 4: operation ${operation}`);
  }
  const row = (await page.locator('#tables tbody tr').first().locator('th, td').allTextContents()).slice(0, 5);
  assert.deepEqual(row, ['node', '512', '8', '10', '4']);
  await page.click('text=✗ Moment 3');
  assert.equal(await at(page), 2);
  await page.keyboard.press('End');
  assert.equal(await at(page), 3);
  await page.keyboard.press('f');
  assert.equal(await at(page), 2);
  await page.keyboard.press('Home');
  await page.focus('body');
  await page.keyboard.press(' ');
  await page.waitForFunction(() => window.uslab.view().at === 3);
  await page.waitForSelector('button[aria-label^="Play"]');
  const again = await open(write('failure-machine.html', machine), '#moment=2');
  assert.equal(await at(again), 1);
  await page.keyboard.press('f');
  await look(page, folder, 'failure-machine');

  const own = await open(write('failure-memory.html', memory));
  for (const [i, { said, parts, facts }] of memory.scenes.entries()) {
    await own.evaluate((n) => (location.hash = `#moment=${n + 1}`), i);
    await own.waitForFunction((n) => window.uslab.view().at === n, i);
    assert.equal(await text(own, '#said'), said || 'The beginning.');
    assert.equal(await own.locator('.part').count(), parts.length);
    const outlined = await own.locator('.memory .wrong').evaluateAll((all) => all.length);
    assert.equal(outlined, i === memory.at ? 2 : 0, 'both buddies');
    if (outlined) assert.match(await text(own, '.facts'), /wrong128 bytes from 0, free; 128 bytes from 128, free/);
    assert.equal(await text(own, '.facts dd'), facts[0][1]);
    assert.equal(await own.locator('#tables tr').count(), parts.length + 1);
    assert.equal((await alerts(own)).length, Number(i === memory.at));
  }
  await look(own, folder, 'failure-memory');
});
