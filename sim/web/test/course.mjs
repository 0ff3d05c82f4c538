// The course in Chromium, for front.mjs: each question of each lab, by mouse and keyboard, with what the page's own engine finds out here.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { decoded } from './carried.mjs';

const SEED = 9;

/** The engine that the page carries, in node. */
async function engineOf(file) {
  const wasm = gunzipSync(decoded(readFileSync(file, 'utf8').match(/id="engine">([^<]*)</)[1]));
  const { exports } = (await WebAssembly.instantiate(wasm, {})).instance;
  const said = (length) => JSON.parse(new TextDecoder().decode(new Uint8Array(exports.memory.buffer, exports.text(), length)));
  return {
    labs: (seed) => said(exports.course(seed)),
    answer: (seed, lab, question) => {
      const name = new TextEncoder().encode(lab);
      const at = exports.room(name.length);
      new Uint8Array(exports.memory.buffer, at, name.length).set(name);
      return said(exports.answer(seed, question));
    },
  };
}

const view = (page) => page.evaluate(() => window.uslab.view());
const problem = (page) => page.locator('.problem').first().textContent();
const hash = (page) => page.evaluate(() => location.hash);

async function go(page, to) {
  await page.evaluate((to) => (location.hash = to), to);
  const { name } = Object.fromEntries(new URLSearchParams(to));
  await page.waitForFunction((name) => (name ? window.uslab.view()?.lab === name : window.uslab.view()?.course), name);
}

/** What the browser keeps afterwards. */
export async function course(open, file, folder) {
  const engine = await engineOf(file);
  const labs = engine.labs(SEED);
  const asking = labs.filter(({ work }) => work.questions);
  const of = asking.flatMap(({ work }) => work.questions).length;
  const page = await open();
  await page.click('nav >> text=Course');
  await page.waitForFunction(() => window.uslab.view()?.course === 1);
  const state = () => page.locator('main section').nth(1).textContent();
  await page.fill('input >> nth=0', 'Ada / Lovelace');
  await page.click('text=save the sheet');
  assert.equal(await problem(page), 'Nothing is answered yet.');
  for (const wrong of ['4294967296', '-1', '1.5', 'x', '']) {
    await page.fill('input >> nth=1', wrong);
    await page.keyboard.press('Enter');
    assert.equal(await problem(page), `The seed ${wrong}: expected a whole number from 0 to 4294967295.`);
    assert.equal(await page.inputValue('input >> nth=1'), '1', 'nothing changed');
  }
  await page.fill('input >> nth=1', String(SEED));
  await page.keyboard.press('Enter');
  assert.equal(await problem(page), '');
  assert.equal(await hash(page), `#course&seed=${SEED}`);
  assert.deepEqual(await page.locator('.card h3').allTextContents(), labs.map(({ title }) => title));
  assert.deepEqual(await page.locator('.card .count').allTextContents(),
    labs.map(({ minutes, work }) => `${minutes} minutes · ${work.questions ? `0 of ${work.questions.length} answered, 0 right` : 'an exercise'}`));
  await page.click(`.card >> nth=0`);
  await page.waitForFunction(() => window.uslab.view()?.lab);
  assert.equal(await hash(page), `#lab&name=${labs[0].name}&seed=${SEED}`);

  // Another page of the same browser, from before.
  const beside = await page.context().newPage();
  await beside.goto(page.url());
  await beside.evaluate(() => window.uslab.ready);
  await page.bringToFront();

  // --- each question, predicted rightly but for one ---
  const answers = {};
  let asked = 0, drawn = 0;
  for (const { name, about, work: { questions } } of asking) {
    await go(page, `#lab&name=${name}&seed=${SEED}`);
    assert.equal(await page.locator('main .what').first().textContent(), about);
    assert.equal(await page.locator('.question').count(), questions.length);
    answers[name] = [];
    for (const [n, { text, expects, design, script }] of questions.entries()) {
      const own = page.locator('.question').nth(n);
      const { right, why, at, strips } = engine.answer(SEED, name, n);
      const wrong = asked === 4;
      const predicted = wrong ? right + 1 : right;
      assert.equal(await own.locator('.what').first().textContent(), text);
      assert.deepEqual(await own.locator('pre').allTextContents(), script ? [script] : []);
      if (script) assert((await own.locator('.script').textContent()).includes(design));
      assert.equal(await own.locator('.verdict').textContent(), '');
      // Nothing, and what is no number, is refused in words.
      await own.locator('text=predict').click();
      assert.match(await own.locator('.problem').textContent(), /^Expected /);
      const byMouse = asked++ % 2 === 0;
      if (expects.choice) {
        if (byMouse) await own.locator('.choices label').nth(predicted).click();
        else {
          await own.locator('input').first().press(' ');
          for (let i = 0; i < predicted; i++) await page.keyboard.press('ArrowDown');
        }
      } else {
        await own.locator('input').fill('1.5');
        await page.keyboard.press('Enter');
        assert.match(await own.locator('.problem').textContent(), /^Expected a whole number/);
        await own.locator('input').fill(byMouse ? String(predicted) : predicted.toLocaleString('en-US'));
      }
      if (byMouse) await own.locator('text=predict').click();
      else await page.keyboard.press('Enter');
      answers[name].push(predicted);
      const said = (value) => (expects.choice ? `“${expects.choice[value]}”` : `${value.toLocaleString('en-US')} (${expects.number})`);
      assert.equal(await own.locator('.verdict p').first().textContent(),
        wrong ? `✗ Not right. You predicted ${said(predicted)}; it is ${said(right)}.` : `✓ Right: ${said(right)}.`, `${name} ${n}`);
      assert.equal(await own.locator('.verdict .what').textContent(), why);
      assert.deepEqual(await own.locator('.strip h4').allTextContents(), (strips ?? []).map(({ said }) => said));
      drawn += await own.locator('.strip .part.used').count();
      assert.equal(await own.locator('.problem').textContent(), '');
      assert.equal(await own.locator('fieldset :enabled, .main:visible:text("predict")').count(), 0, 'it is locked');
      assert(await page.evaluate(() => document.activeElement.textContent.startsWith('Question')), 'the focus stays with the question');
      const { predicted: kept } = await view(page);
      assert.deepEqual(kept, answers[name]);
      if (!script) {
        assert.equal(await own.locator('.run').count(), 0);
        continue;
      }
      // The run, at the operation of the answer; keys move it.
      await own.locator('.run').waitFor();
      const run = async () => (await view(page)).runs.at(-1);
      const first = await run();
      assert.deepEqual([first.at, first.view.operation], [at, at]);
      await page.keyboard.press('ArrowLeft');
      assert.equal((await run()).at, at - 1);
      await page.keyboard.press('n');
      assert.equal((await run()).at, at, 'the answer is at the first slow path after the mark');
      await page.keyboard.press('End');
      await page.keyboard.press('a');
      assert.deepEqual(await run(), first);
      const sentence = first.view.steps.map((step) => step.sentence).join(' ');
      // The stage has its own words for what the shipping allocator did.
      const [{ cpu, what }] = first.view.steps, told = await own.locator('.run .said').textContent();
      assert(sentence && (told.endsWith(sentence) || told.includes(`CPU ${cpu} ${what === 'alloc' ? 'allocates' : 'frees'} an object`)), told);
      const byHand = own.locator('text=the same machine by hand');
      const cached = script.includes('\ncache ');
      assert.deepEqual([await byHand.count(), await own.locator('.run .stage').count(), await own.locator('.run .tables table').count()], cached ? [1, 1, 0] : [0, 0, 2]);
      if (!cached) assert((await own.locator('.run .tables').textContent()).includes(`blocks${first.view.pages.blocks.toLocaleString('en-US')}`));
      else if (n === 0) {
        await byHand.click();
        await page.waitForFunction((at) => window.uslab.view()?.view && window.uslab.view().at === at, at);
        assert.deepEqual((await view(page)).view, first.view, 'by hand it is the same');
        assert.equal(await page.inputValue('textarea'), script);
        await page.goBack();
        await page.waitForFunction(() => window.uslab.view()?.runs?.length === 1);
        assert.equal(await own.locator('fieldset :enabled').count(), 0, 'it is still locked');
      }
    }
  }
  // Two runs: keys move the one that was touched last.
  await go(page, `#lab&name=two-magazines&seed=${SEED}`);
  await page.waitForFunction(() => window.uslab.view().runs.length > 1);
  const runs = async () => Object.fromEntries((await view(page)).runs.map(({ at, view }) => [view.time_ns, at]));
  const firsts = page.locator('.run >> nth=0');
  await firsts.locator('button[aria-label^="To the beginning"]').click();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  assert.equal(await firsts.locator('.of').textContent(), (await firsts.locator('.of').textContent()).replace(/^\d+/, '2'));
  assert.equal(Object.values(await runs()).filter((at) => at === 2).length, 1);
  // The race has its story beside it.
  await go(page, '#lab&name=race');
  assert.equal(await hash(page), `#lab&name=race&seed=${SEED}`);
  const story = engine.answer(SEED, 'race', 0).at;
  for (const [text, step] of [['The story, step by step', 0], [`Step ${story} of the story`, story]]) {
    const [popup] = await Promise.all([page.waitForEvent('popup'), page.click(`text=${text} >> nth=0`)]);
    await popup.waitForLoadState();
    await popup.evaluate(() => window.uslab.ready);
    const { step: found, last } = await popup.evaluate(() => window.uslab.view());
    assert.equal(found, step || last, 'without a step it is the failure');
    await popup.close();
  }

  // What the other page predicts is predicted here, too, and only once.
  for (const [seed, n] of [[SEED, 0], [3, 1]]) {
    await go(beside, `#lab&name=colour&seed=${seed}`);
    await beside.waitForFunction((seed) => window.uslab.view().seed === seed, seed);
    if (seed === SEED) assert.deepEqual((await view(beside)).predicted, answers.colour);
    else {
      await go(page, '#lab&name=colour&seed=3');
      await page.waitForFunction(() => window.uslab.view().seed === 3);
      for (const [own, value] of [[page, '4'], [beside, '5']]) {
        await own.fill(`.question:nth-of-type(${n + 2}) input`, value);
        await own.keyboard.press('Enter');
        assert.deepEqual((await view(own)).predicted, [null, 4]);
        assert.match(await own.locator('.verdict').nth(n).textContent(), / 4 \(sets\)/);
      }
    }
  }
  await beside.close();
  assert(drawn > 40, 'colours are drawn');
  assert.equal(await page.locator('a[href*="lecturer"]').count(), 0, 'no page of a student leads to the lecturer’s');

  // --- the sheet: saved, kept, read back in elsewhere ---
  const sheet = { course: 1, name: 'Ada / Lovelace', seed: SEED, answers };
  await go(page, `#course&seed=${SEED}`);
  assert((await state()).includes(`${of} of ${of} questions answered with seed ${SEED}, ${of - 1} of them right.`));
  assert((await state()).includes('uslab course grade answers-Ada-Lovelace.json'));
  const [saved] = await Promise.all([page.waitForEvent('download'), page.click('text=save the sheet')]);
  assert.equal(saved.suggestedFilename(), 'answers-Ada-Lovelace.json');
  const path = join(folder, 'answers.json');
  await saved.saveAs(path);
  assert.deepEqual(JSON.parse(readFileSync(path, 'utf8')), sheet);
  await page.reload();
  await page.evaluate(() => window.uslab.ready);
  assert.deepEqual(await view(page), sheet, 'the browser keeps it');

  const other = await open(`#course&seed=${SEED + 1}`);
  assert.deepEqual(await view(other), { course: 1, name: '', seed: SEED + 1, answers: {} });
  await other.click('text=save the sheet');
  assert.equal(await problem(other), 'A sheet has a name on it: write yours first.');
  const bad = join(folder, 'bad.json');
  const [{ name: lab, work: { questions } }] = asking;
  for (const [text, said] of [
    ['no JSON', 'expected JSON that this page saved'], ['7', 'expected JSON that this page saved'], [{ ...sheet, course: 2 }, 'a sheet of version 2 of the course; expected 1'],
    [{ ...sheet, seed: -1 }, 'expected a name, a seed and answers'], [{ ...sheet, answers: [] }, 'expected a name, a seed and answers'],
    [{ ...sheet, answers: { frob: [1] } }, 'no lab frob has questions'], [{ ...sheet, answers: { [lab]: Array(questions.length + 1).fill(1) } }, `at most ${questions.length} answers`],
    [{ ...sheet, answers: { [lab]: [1.5] } }, 'whole numbers or null'], [{ ...sheet, answers: { race: [null, null, 4] } }, 'lab race: expected at most 3 answers'],
  ]) {
    // Two files in a row give the same message: without this the second wait would end at the first one's.
    await other.evaluate(() => { document.querySelector('.problem').textContent = ''; });
    writeFileSync(bad, typeof text === 'string' ? text : JSON.stringify(text));
    await other.setInputFiles('input[type=file]', bad);
    await other.waitForFunction((said) => document.querySelector('.problem').textContent.includes(said), said);
    assert.deepEqual((await view(other)).answers, {}, 'nothing changed');
  }
  await other.setInputFiles('input[type=file]', path);
  await other.waitForFunction((seed) => window.uslab.view().seed === seed, SEED);
  assert.deepEqual(await view(other), sheet);
  assert.equal(await problem(other), '');

  // --- another seed has other numbers, and its own answers ---
  const texts = async (from) => {
    await go(other, `#lab&name=${asking[0].name}&seed=${from}`);
    await other.waitForFunction((seed) => window.uslab.view().seed === seed, from);
    return [(await view(other)).predicted.length, await other.locator('.question .what').allTextContents()];
  };
  const [ten, nine] = [await texts(SEED + 1), await texts(SEED)];
  assert.deepEqual([ten[0], nine[0]], [0, questions.length]);
  assert.notDeepEqual(ten[1], nine[1].filter((_, i) => i % 2 === 0));
  assert.equal(ten[1][0], engine.labs(SEED + 1).find(({ name }) => name === asking[0].name).work.questions[0].text);
  await go(other, '#course&seed=4294967295');
  assert.equal((await view(other)).seed, 4294967295);
  await other.evaluate(() => (location.hash = '#lab&name=depot&seed=frob'));
  await other.waitForFunction(() => document.querySelector('.problem').textContent.startsWith('The seed frob: expected'));
  await other.context().close();

  // --- a browser that keeps nothing says so, and this page does meanwhile ---
  const forgets = await open();
  await forgets.addInitScript(() => Object.defineProperty(window, 'localStorage', { get: () => { throw new DOMException('no', 'SecurityError'); } }));
  await forgets.reload();
  await forgets.evaluate(() => window.uslab.ready);
  await go(forgets, '#lab&name=colour&seed=3');
  await forgets.fill('.question input', '7');
  await forgets.keyboard.press('Enter');
  await go(forgets, '#course');
  assert.deepEqual((await view(forgets)).answers, { colour: [7] });
  assert((await forgets.textContent('main')).includes('save the sheet before you close the page'));
  await forgets.context().close();

  // --- code ---
  for (const { name, work: { code } } of labs.filter(({ work }) => work.code)) {
    await go(page, `#lab&name=${name}`);
    assert.deepEqual(await page.locator('main li').allTextContents(), code.judged_by);
    assert.equal(await page.textContent('pre'), code.starter);
    assert((await page.textContent('main')).includes(`uslab course grade ${name}.rs`));
    const [starter] = await Promise.all([page.waitForEvent('download'), page.click(`text=save ${name}.rs`)]);
    assert.equal(starter.suggestedFilename(), `${name}.rs`);
    const to = join(folder, `${name}.rs`);
    await starter.saveAs(to);
    assert.equal(readFileSync(to, 'utf8'), code.starter);
  }

  // --- for who teaches it, on paper, too ---
  await page.goto(page.url().replace(/#.*/, '#lecturer'));
  await page.waitForSelector('.taught');
  const main = await page.textContent('main');
  assert(main.includes(`${labs.reduce((all, { minutes }) => all + minutes, 0)} minutes in all`));
  const taught = await page.locator('.taught').allTextContents();
  assert.equal(taught.length, labs.length);
  labs.forEach(({ title, minutes, about, shows, pitfall, work }, i) => {
    for (const part of [title, `${minutes} minutes, ${work.questions ? `${work.questions.length} questions` : 'an exercise'}`, about, shows, pitfall]) assert(taught[i].includes(part), part);
  });
  for (const part of ['uslab course grade answers-NAME.json', 'uslab course grade ann-merge.rs --seed N', 'exit code is 0', 'container']) assert(main.includes(part), part);
  await page.emulateMedia({ media: 'print', colorScheme: 'dark' });
  assert.equal(await page.locator('nav:visible, button:visible, input:visible').count(), 0);
  assert.deepEqual(await page.evaluate(() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]), ['rgb(255, 255, 255)', 'rgb(28, 32, 36)']);
  const kept = await page.evaluate(() => localStorage.getItem('uslab course'));
  await page.context().close();
  return kept;
}
