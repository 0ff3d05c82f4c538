// What the tests of pages share: a page from disk that may not ask for anything, and pictures of it.
import assert from 'node:assert/strict';
import { dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { chromium } from 'playwright-core';

/** Milliseconds that a busy machine may take for anything. */
const PATIENCE = 180_000;

/** What a key or a click brings about is drawn a task or a frame later: until then. A page that is left meanwhile is asked when the next is there. */
async function settled(page) {
  for (;;) {
    try {
      return await page.evaluate(() => new Promise((then) => requestAnimationFrame(() => setTimeout(then))));
    } catch (error) {
      if (!/context was destroyed|navigat/i.test(error.message)) throw error;
      await page.waitForLoadState();
    }
  }
}
/** Every key, click and link of `page` returns once the page has drawn what came of it. A locator's go through its frame's, too. */
function settling(page) {
  const parts = [
    [page.mainFrame(), ['goto', 'click', 'dblclick', 'fill', 'press', 'check', 'uncheck', 'selectOption', 'setInputFiles']],
    [page, ['goBack', 'goForward', 'reload']],
    [page.keyboard, ['press']],
    [page.mouse, ['click', 'dblclick', 'move', 'up', 'wheel']],
  ];
  for (const [of, names] of parts) for (const name of names) {
    const does = of[name];
    of[name] = async (...args) => {
      const result = await does.apply(of, args);
      await settled(page);
      return result;
    };
  }
}

/**
 * Runs a test in Chromium. `open(file, hash, options, until)` opens a page and waits for it to be `until`: ready, if not told. Whatever goes
 * wrong in a page fails the test, and so does a request for anything but the pages of its folder and its own worker.
 */
export async function drive(name, test) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
  const wrong = [];
  const begun = performance.now();
  async function open(file, hash = '', options = {}, until = 'ready') {
    const address = pathToFileURL(resolve(file)).href;
    const context = await browser.newContext({ viewport: { width: 1440, height: 1000 }, ...options });
    context.setDefaultTimeout(PATIENCE);
    context.on('page', (page) => {
      settling(page);
      page.on('console', (message) => { if (['error', 'warning'].includes(message.type())) wrong.push(message.text()); });
      page.on('pageerror', (error) => wrong.push(String(error)));
      page.on('request', (request) => {
        const page = request.isNavigationRequest() && request.url().startsWith(`${dirname(address)}/`);
        if (!page && !request.url().startsWith('blob:')) wrong.push(`a request: ${request.url()}`);
      });
    });
    await context.addInitScript(() => {
      window.copied = [];
      Object.defineProperty(navigator, 'clipboard', { configurable: true, value: { writeText: async (text) => { window.copied.push(text); } } });
    });
    const page = await context.newPage();
    await page.goto(address + hash);
    await page.evaluate((until) => window.uslab[until], until);
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

/** Until the view is so. A promise that `waitForFunction` is given counts as a yes: it cannot ask for one. */
export async function until(page, holds) {
  for (const end = Date.now() + PATIENCE; !holds(await view(page));) {
    assert.ok(Date.now() < end, `until ${holds}: ${JSON.stringify(await view(page))}`);
    await page.waitForTimeout(20);
  }
}

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
