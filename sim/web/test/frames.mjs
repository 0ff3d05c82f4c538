// node frames.mjs USLAB FOLDER [WIDTH HEIGHT]: ten pictures of the start page, of designs side by side, the magazines, seven demos and the replay, one a second
// from their opening, as FOLDER/start-0.png to FOLDER/replay-9.png. The page's clock is the script's: the pictures are the same on a slow machine.
import { execFileSync } from 'node:child_process';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

const [uslab, folder, width = 1440, height = 900] = process.argv.slice(2);
const DEMOS = ['buddy', 'tlsf', 'handles', 'packed', 'fifty-percent', 'robson', 'pinning'].map((name) => [name, ['index.html', `#demo&name=${name}`]]);
const PAGES = { start: ['index.html', ''], compare: ['index.html', '#compare'], magazines: ['index.html', '#machine&name=magazines'], ...Object.fromEntries(DEMOS), replay: ['replay.html', ''] };
const FRAMES = 10, SECOND = 1000;

if (uslab !== '-') execFileSync(uslab, ['page', join(folder, 'pages')], { stdio: 'ignore' });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
for (const [name, [file, hash]] of Object.entries(PAGES)) {
  const page = await browser.newPage({ viewport: { width: Number(width), height: Number(height) } });
  await page.clock.install({ time: 0 });
  await page.clock.pauseAt(SECOND);
  await page.goto(pathToFileURL(resolve(folder, 'pages', file)).href + hash);
  await page.evaluate(() => window.uslab.ready);
  for (let n = 0; n < FRAMES; n++) {
    await page.clock.runFor(n ? SECOND : 100);
    await page.screenshot({ path: join(folder, `${name}-${n}.png`) });
  }
  await page.close();
  console.log(`PAGE | ${FRAMES} pictures of ${name} in ${folder}`);
}
await browser.close();
