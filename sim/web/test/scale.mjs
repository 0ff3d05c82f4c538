// node scale.mjs USLAB FOLDER: the page of a scale report in Chromium.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { drive, look, until, view } from './browser.mjs';

const [uslab, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const [plain, marked, profile] = ['scale.html', 'scale-validated.html', 'scale-profile.json'].map((name) => join(folder, name));
const scale = (...args) => execFileSync(uslab, ['scale', '--cpus', '1..64', '--workload', 'pairs,remote=20', ...args], { maxBuffer: 1 << 26 }).toString();
const designs = ['bonwick94', 'magazines01', 'slub', 'slub:cpu_partial=0', 'uslab-model'];
scale('--profile', 'milan2s', '--design', designs.join(), '--html', plain);
const report = JSON.parse(readFileSync(plain, 'utf8').match(/id="report">(.*)<\/script>/)[1]);
writeFileSync(profile, JSON.stringify({ ...report.profile, validated_cpus: 4 }));
scale('--profile', profile, '--html', marked);
const counts = [1, 2, 4, 8, 16, 32, 64];
const point = (workload, design, cpus) => report.curves.find((own) => own.workload === workload && own.design === design).points.find((own) => own.cpus === cpus);

await drive('scale', async (open) => {
  const page = await open(plain);
  const first = await view(page);
  assert.deepEqual([first.measure, first.workload, first.cpus, first.counts, first.log], ['speed', 'pairs', 64, counts, { x: true, y: true }]);
  assert.equal(await page.locator('#chart .curve').count(), designs.length);
  assert.equal(await page.locator('#chart .mark').count(), designs.length * counts.length);

  // --- every measure of every workload is the report's ---
  const options = (id) => page.$$eval(`#${id} option`, (all) => all.map(({ value }) => value));
  const of = {
    speed: (at) => at.operations_per_us, 'speed-up': (at, first) => at.operations_per_us / first.operations_per_us,
    waiting: (at) => 100 * at.waiting, lines: (at) => at.lines_per_operation, slow: (at) => 100 * (1 - at.paths.cpu / at.operations),
    container: (at) => at.container, slabs: (at) => at.slabs,
  };
  for (const lock of ['depot', 'lists', 'zone']) {
    of[`${lock}-contended`] = (at) => 1000 * at[lock].contended / at.operations;
    of[`${lock}-waited`] = (at) => at[lock].waited_ns / at.operations;
  }
  assert.deepEqual((await options('measure')).toSorted(), Object.keys(of).toSorted());
  for (const workload of await options('workload')) for (const measure of await options('measure')) {
    await page.selectOption('#workload', workload);
    await page.selectOption('#measure', measure);
    const { curves } = await view(page);
    assert.deepEqual(curves.map(({ name }) => name), designs);
    for (const { name, points } of curves) for (const { cpus, value } of points) {
      const expected = of[measure](point(workload, name, cpus), point(workload, name, 1));
      assert(Math.abs(value - expected) <= 1e-9 * Math.max(1, Math.abs(expected)), `${measure} of ${name} on ${cpus}: ${value}, ${expected}`);
    }
    const drawn = await page.$$eval('#chart .curve', (all) => all.map((curve) => curve.getAttribute('d')));
    assert(drawn.every((d) => !/NaN|Infinity/.test(d)), `${measure}: ${drawn}`);
  }

  // --- every key ---
  const press = async (key, what, expected) => {
    await page.locator('h1').click();
    await page.keyboard.press(key);
    assert.deepEqual((await view(page))[what], expected, key);
  };
  await page.selectOption('#measure', 'speed');
  await page.selectOption('#workload', 'pairs');
  await press('Home', 'cpus', 1);
  await press('ArrowLeft', 'cpus', 1);
  await press('ArrowRight', 'cpus', 2);
  await press('ArrowUp', 'cpus', 4);
  await press('ArrowDown', 'cpus', 2);
  await press('ArrowLeft', 'cpus', 1);
  await press('End', 'cpus', 64);
  await press('m', 'measure', 'speed-up');
  await press('w', 'workload', 'remote=20');
  await press('w', 'workload', 'pairs');
  for (const way of ['x', 'y']) {
    await press(way, 'log', { x: true, y: true, [way]: false });
    assert.equal(await page.isChecked(`#${way}-log`), false);
    await page.click(`#${way}-log`);
    assert.deepEqual((await view(page)).log, { x: true, y: true });
  }
  await page.selectOption('#measure', 'speed');

  // --- axes: equal steps are equal ratios, or equal differences ---
  const xs = () => page.$eval('#chart .curve', (curve) => curve.getAttribute('d').slice(1).split('L').map((at) => Number(at.split(' ')[0])));
  let [a, b, , , e] = await xs();
  assert(Math.abs((e - a) - 4 * (b - a)) < 0.5, 'logarithmic');
  await page.keyboard.press('x');
  [a, b, , , e] = await xs();
  assert(Math.abs((e - a) - 15 * (b - a)) < 2, 'linear');
  await page.keyboard.press('x');

  // --- designs ---
  for (const off of [() => page.keyboard.press('1'), () => page.click('#designs label >> nth=0')]) {
    await off();
    assert.deepEqual((await view(page)).curves.map(({ name }) => name), designs.slice(1));
    assert.equal(await page.locator('#chart .curve').count(), designs.length - 1);
    await off();
    assert.equal((await view(page)).curves.length, designs.length);
  }

  // --- values under the pointer, in words and as a table ---
  const box = await page.locator('#chart').boundingBox();
  await page.mouse.move(box.x + a, box.y + 80);
  assert.equal((await view(page)).cpus, 1);
  await page.mouse.move(box.x + box.width - 16, box.y + 80);
  assert.equal((await view(page)).cpus, 64);
  const values = await page.textContent('#values');
  for (const design of designs) assert(values.includes(design), values);
  assert.match(values, /64 CPUs simulated only/);
  assert.match(values, /slub:cpu_partial=0 = slub/, 'equal curves are told');
  assert.equal(await page.locator('#designs .mark:not(.open), #values .mark:not(.open)').count(), 0, 'nothing is measured');
  const spoken = await page.getAttribute('#chart', 'aria-valuetext');
  const [kind, order] = spoken.split('/µs: ');
  assert.equal(kind, '64 CPUs, simulated only, throughput in operations');
  const best = designs.toSorted((one, other) => point('pairs', other, 64).operations_per_us - point('pairs', one, 64).operations_per_us);
  assert.deepEqual(order.split(', ').map((words) => words.slice(0, words.lastIndexOf(': '))), best);
  assert.match(await page.textContent('#caption'), /All numbers are simulated.*begins with an empty allocator.*Magazines and Vmem/);
  assert.equal(await page.locator('#chart .validated').count(), 0);
  assert.equal(await page.locator('#chart .linear').count(), 1);
  await page.click('#twin summary');
  await page.waitForSelector('#twin tbody tr');
  assert.equal(await page.locator('#twin table').count(), Object.keys(of).length);
  assert.equal(await page.locator('#twin tbody tr').count(), Object.keys(of).length * designs.length);
  assert.equal(await page.locator('#twin tbody tr').first().locator('td').count(), counts.length);
  await page.click('#twin summary');

  // --- the link ---
  await page.locator('h1').click();
  for (const key of ['m', 'w', 'x', '2', 'ArrowLeft', 'l']) await page.keyboard.press(key);
  await page.click('button[data-key="l"]');
  const [link, again] = await page.evaluate(() => window.copied);
  assert.equal(link, again);
  const restored = await open(plain, new URL(link).hash);
  assert.deepEqual(await view(restored), await view(page));
  await restored.evaluate(() => { location.hash = '#measure=slabs&cpus=3'; });
  await until(restored, (view) => view.measure === 'slabs');
  const odd = await open(plain, '#measure=x&workload=y&cpus=z&off=nobody');
  assert.deepEqual(await view(odd), first);
  await odd.context().close();
  await restored.context().close();

  // --- what was held against measurements is marked ---
  const held = await open(marked);
  assert.equal(await held.locator('#chart .validated').count(), 1);
  assert.equal(await held.locator('#designs .mark.open').count(), 0);
  assert.equal(await held.locator('#chart .mark:not(.open)').count(), 3 * 2);
  assert.match(await held.textContent('#caption'), /up to 4 CPUs the profile was compared with measurements/);
  await held.locator('h1').click();
  await held.keyboard.press('Home');
  assert.match(await held.textContent('#values'), /1 CPU held against measurements/);
  await look(held, folder, 'scale-validated');
  await page.evaluate(() => { location.hash = '#measure=speed&workload=pairs&cpus=32'; });
  await until(page, (view) => view.cpus === 32);
  await look(page, folder, 'scale');
});
