// What the tests of pages share: a page from disk that may not ask for anything, and pictures of it.
import assert from 'node:assert/strict';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

/** Runs a test in Chromium; `open(file, hash, options)` opens a page, and whatever goes wrong in one fails the test. */
export async function drive(name, test) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
  const wrong = [];
  const begun = performance.now();
  async function open(file, hash = '', options = {}) {
    const address = pathToFileURL(resolve(file)).href;
    const context = await browser.newContext({ viewport: { width: 1440, height: 1000 }, ...options });
    const page = await context.newPage();
    page.on('console', (message) => { if (['error', 'warning'].includes(message.type())) wrong.push(message.text()); });
    page.on('pageerror', (error) => wrong.push(String(error)));
    page.on('request', (request) => { if (request.url().split('#')[0] !== address) wrong.push(`a request: ${request.url()}`); });
    await page.addInitScript(() => {
      window.copied = [];
      Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { window.copied.push(text); } } });
    });
    await page.goto(address + hash);
    await page.evaluate(() => window.uslab.ready);
    return page;
  }
  try {
    await test(open);
    assert.deepEqual(wrong, []);
    console.log(`PAGE | ${name}: every button and key does what it says; no error, no request; ${((performance.now() - begun) / 1000).toFixed(1)} s`);
  } finally {
    await browser.close();
  }
}

export const view = (page) => page.evaluate(() => window.uslab.view());

/** Pictures at three widths, light and dark; nothing scrolls sideways, and everything that can be pressed has a name. */
export async function look(page, folder, name) {
  const unnamed = await page.$$eval('button, input, select, [role=slider]', (all) => all.filter((element) => {
    const label = element.getAttribute('aria-label') ?? element.textContent.trim();
    return !label && !element.closest('label')?.textContent.trim();
  }).map((element) => element.outerHTML.slice(0, 100)));
  assert.deepEqual(unnamed, []);
  for (const colorScheme of ['light', 'dark']) for (const width of [390, 820, 1440]) {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await page.evaluate(() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then))));
    assert(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name} at ${width} scrolls sideways`);
    await page.screenshot({ path: join(folder, `${name}-${width}-${colorScheme}.png`), fullPage: true });
  }
}
