// node first.mjs USLAB FOLDER: the first screens in Chromium, within a minute: objects are drawn, the page plays without a click and stops at a
// key. Reports the stage's share of the screen, the time of a frame with 10,000 objects of which 200 move, and the time of a seek.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { drive, until, view } from './browser.mjs';

const [uslab, folder] = process.argv.slice(2);
execFileSync(uslab, ['page', join(folder, 'pages')], { stdio: 'ignore' });
const [index, replay] = ['index', 'replay'].map((name) => join(folder, 'pages', `${name}.html`));
const PAGES = { start: [index, ''], compare: [index, '#compare'], magazines: [index, '#machine&name=magazines'], replay: [replay, ''] };
const at = ({ at, operation }) => at ?? operation;
const percentile = (numbers, share) => numbers.toSorted((a, b) => a - b)[Math.min(Math.floor(numbers.length * share), numbers.length - 1)].toFixed(1);
/** Milliseconds that the page's main thread ran so far: other programs of the machine do not count. */
async function processor(page) {
  const session = await page.context().newCDPSession(page);
  await session.send('Performance.enable', { timeDomain: 'threadTicks' });
  return async () => 1000 * (await session.send('Performance.getMetrics')).metrics.find(({ name }) => name === 'TaskDuration').value;
}
const said = (...words) => console.log('PAGE |', ...words);

await drive('first screens', async (open) => {
  for (const [name, [file, hash]] of Object.entries(PAGES)) {
    const shares = [];
    for (const [width, height] of [[1440, 900], [390, 844]]) {
      const page = await open(file, hash, { viewport: { width, height } });
      const first = at(await view(page));
      await until(page, (view) => at(view) > first);
      const { share, drawn, below } = await page.evaluate(async () => {
        const stages = Array.from(document.querySelectorAll('.first .stage'), (stage) => stage.getBoundingClientRect()), { stage, counts } = window.uslab;
        return {
          share: stages.reduce((sum, { width, height }) => sum + width * height, 0) / (innerWidth * innerHeight), drawn: stage ? stage().drawn : (await counts())[0].objects,
          below: Math.max(...Array.from(document.querySelectorAll('.first .said, .first .bar'), (part) => part.getBoundingClientRect().bottom)),
        };
      });
      assert(drawn > 0 && share >= 0.6 && below <= height, `${name} at ${width}: ${drawn} objects, ${share.toFixed(2)} of the screen, ends at ${below}`);
      shares.push(`${(100 * share).toFixed(1)} % at ${width} × ${height}`);
      const playing = () => page.locator('.main').first().getAttribute('aria-label');
      assert.match(await playing(), /^Pause/);
      await page.keyboard.press(' ');
      assert.match(await playing(), /^Play/);
      await page.context().close();
    }
    said(`${name}: the stage has ${shares.join(', ')}`);
  }

  // --- the time of a frame ---
  {
    const page = await open(index, '#start&at=111'), busy = await processor(page), begun = await busy();
    const { frames, costs } = await page.evaluate(async ({ slabs, per, moving, cpus, seconds }) => {
      const stage = window.uslab.stage(), each = moving / cpus, names = 'abce';
      const held = (cpu) => Array.from({ length: each }, (_, i) => [cpu * each + i, 0]);
      const moment = (deposited) => ({
        seats: { slabs: new Map(Array.from({ length: slabs }, (_, i) => [i, i])), shared: new Map(Array.from({ length: cpus }, (_, cpu) => [held(cpu)[0][0] * 65536, cpu])), program: new Map() }, map: new Uint8Array(slabs).fill(2),
        view: { operation: 1, caches: [{ order: 0, capacity: each, per_slab: per, size: 64, used: 0 }], steps: [{ cpu: 0, cache: 0, what: 'free', path: 'depot', did: [], sentence: '' }] },
        shown: {
          cache: 0,
          slabs: Array.from({ length: slabs }, (_, page) => ({ page, list: 'partial', objects: (page < moving ? deposited ? 'd' : names[Math.floor(page / each)] : '.') + 'u'.repeat(per - 1) })),
          cpus: Array.from({ length: cpus }, (_, cpu) => [{ name: 'magazine', objects: deposited ? 0 : each, room: each, places: deposited ? [] : held(cpu) }]),
          shared: [Array.from({ length: cpus }, (_, cpu) => ({ name: '', objects: deposited ? each : 0, room: each, places: deposited ? held(cpu) : [] }))],
        },
      });
      const [before, after] = [moment(false), moment(true)], costs = [], ask = window.requestAnimationFrame;
      stage.reserve([before, after]);
      stage.speed = stage.show(after, before, true) / (1000 * seconds);
      window.requestAnimationFrame = (does) => ask((now) => {
        const begun = performance.now();
        does(now);
        costs.push(performance.now() - begun);
      });
      stage.frames.length = 0;
      const ms = stage.show(after, before, true);
      await new Promise((then) => setTimeout(then, ms + 500));
      window.requestAnimationFrame = ask;
      return { drawn: stage.drawn, frames: stage.frames.slice(1), costs };
    }, { slabs: 250, per: 40, moving: 200, cpus: 4, seconds: 10 });
    assert(frames.length > 1);
    said(`10,000 objects, 200 moving, 10 s: ${frames.length} frames, 95 of 100 within ${percentile(frames, 0.95)} ms, drawn within ${percentile(costs, 0.95)} ms; ` +
      `${((await busy() - begun) / frames.length).toFixed(2)} ms of the page's processor time for each`);
    await page.context().close();
  }

  // --- the time of a seek ---
  {
    const page = await open(replay), last = Number((await page.textContent('#of')).replace(/\D/g, '')), busy = await processor(page), times = [], own = [];
    await page.keyboard.press(' ');
    for (let n = 0; n < 30; n++) {
      const begun = await busy();
      times.push(await page.evaluate(async (n) => {
        const begun = performance.now();
        await window.uslab.seek(n);
        return performance.now() - begun;
      }, n * 7919 % 30 * Math.floor(last / 30)));
      own.push(await busy() - begun);
    }
    said(`a seek: median ${percentile(times, 0.5)} ms, 95 of 100 within ${percentile(times, 0.95)} ms; of the page's processor time ${percentile(own, 0.5)} and ${percentile(own, 0.95)} ms`);
    await page.context().close();
  }
});
