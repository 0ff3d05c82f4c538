// node check.js ENGINE.wasm STREAM FILE with {design, shown, every, moments: [[operation, hash of the view]]}: goes to the moments in their
// order and compares; tests/sim/page.rs knows the hashes from native runs. With `every` 0 they are in order, and nothing is kept.
import { readFileSync } from 'node:fs';
import { Engine, Travel } from './built/travel.js';

const [wasm, stream, wanted] = process.argv.slice(2);
const { design, shown, every, moments } = JSON.parse(readFileSync(wanted, 'utf8'));

try {
  const engine = await Engine.open(readFileSync(wasm), readFileSync(stream), 64 << 20, design);
  const travel = every ? new Travel(engine, every) : null;
  if (travel) {
    while (travel.record());
    travel.finish();
    engine.check();
  }
  for (const [at, hash] of moments) {
    const text = (travel ?? engine).view(at, shown);
    const found = BigInt.asUintN(64, engine.exports.text_hash()).toString(16).padStart(16, '0');
    if (found !== hash) throw new Error(`operation ${at}: view ${found}, natively ${hash}\n${text.slice(0, 2000)}`);
    if (travel) engine.check();
  }
  engine.check();
  const kept = travel ? `, ${travel.newest} checkpoints, ${(travel.kept / 2 ** 20).toFixed(1)} MiB of changes` : '';
  console.log(`${moments.length} moments${kept}`);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
