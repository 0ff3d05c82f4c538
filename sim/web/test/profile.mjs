// node profile.mjs USLAB FOLDER: the page of a heap profile in Chromium.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { drive, look, view } from './browser.mjs';

const [uslab, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const [folded, page_] = ['heap.folded', 'profile.html'].map((name) => join(folder, name));
writeFileSync(folded, 'malloc-64;main;reads</script>;lines 600\nmalloc-64;main;writes 200\nlarge;main;reads</script> 100\nhuge 100\n');
execFileSync(uslab, ['flame', folded, '--html', page_], { stdio: 'ignore' });

await drive('profile', async (open) => {
  const page = await open(page_);
  const text = (id) => page.textContent(`#${id}`);
  assert.deepEqual(await view(page), { chosen: 'all', bytes: 1000, bars: 10 });
  assert.match(await text('title'), /heap\.folded; 1,000 bytes in 4 stacks/);
  assert.equal(await text('said'), 'all: 1,000 bytes, 100.0 %');
  // As wide as its bytes.
  const width = async (name, nth = 0) => (await page.locator('.bar-of', { hasText: name }).nth(nth).boundingBox()).width;
  const whole = await width('all');
  assert(Math.abs((await width('malloc-64')) / whole - 0.8) < 0.01);
  assert(Math.abs((await width('lines')) / whole - 0.6) < 0.01);
  // One that is chosen has the page, and what lies outside of it the width of all.
  await page.locator('.bar-of', { hasText: 'malloc-64' }).click();
  assert.deepEqual(await view(page), { chosen: 'malloc-64', bytes: 800, bars: 6 });
  assert(Math.abs((await width('lines')) / whole - 0.75) < 0.01);
  await page.keyboard.press('Escape');
  assert.equal((await view(page)).chosen, 'all');
  // What is looked for, in all caches.
  await page.locator('#find').fill('READS');
  assert.equal(await page.locator('.bar-of.matches').count(), 2);
  assert.equal(await text('found'), '700 bytes, 70.0 %');
  await page.locator('#find').fill('');
  assert.equal(await page.locator('.bar-of.matches').count(), 0);
  await page.locator('summary').click();
  const rows = await page.locator('#table tbody tr').allTextContents();
  assert.deepEqual(rows, ['main90090.0 %0', 'reads</script>70070.0 %100', 'lines60060.0 %600', 'writes20020.0 %200']);
  await look(page, folder, 'profile');
});
