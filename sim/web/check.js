'use strict';
// node check.js ENGINE.wasm STREAM {shown, every, moments: [[operation, hash of the view]]}: seeks to the moments in their
// order and compares; tests/sim/page.rs knows the hashes from native runs.
require('./travel.js');
const fs = require('fs');
const { Engine, Travel } = globalThis.uslabTravel;
const [wasm, stream, wanted] = process.argv.slice(2);
const { shown, every, moments } = JSON.parse(wanted);

(async () => {
  const engine = await Engine.open(fs.readFileSync(wasm), fs.readFileSync(stream), 64 << 20);
  const travel = new Travel(engine, every);
  while (travel.record());
  engine.run(travel.operations);
  engine.check();
  for (const [at, hash] of moments) {
    const text = travel.view(at, shown);
    const found = BigInt.asUintN(64, engine.e.text_hash()).toString(16).padStart(16, '0');
    if (found !== hash) throw new Error(`operation ${at}: view ${found}, natively ${hash}\n${text.slice(0, 2000)}`);
    engine.check();
  }
  console.log(`${moments.length} moments, ${travel.newest} checkpoints, ${(travel.kept / 2 ** 20).toFixed(1)} MiB of changes`);
})().catch((error) => { console.error(error.message); process.exitCode = 1; });
