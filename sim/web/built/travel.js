// src/engine.ts
var e = class extends Error {}, t = class e {
	exports;
	at = 0;
	about;
	constructor(e) {
		this.exports = e, this.about = JSON.parse(this.text(e.about()));
	}
	static async open(t, a, o, s = "uslab", c = 0) {
		let l = await n(t), u = (e) => {
			if (e) throw Error(i(l, e));
		};
		return r(l, new TextEncoder().encode(s)), u(l.design()), typeof a == "string" ? (r(l, new TextEncoder().encode(a)), u(l.open_script())) : (r(l, a), u(l.open(c))), o && l.reserve(o), new e(l);
	}
	static async backToBack(e, t, a, o, s) {
		let c = await n(e);
		r(c, new TextEncoder().encode(a));
		let l = c.design();
		if (l) throw Error(i(c, l));
		let u = JSON.parse(i(c, c.profiles()));
		r(c, t);
		let d = i(c, c.back_to_back(o, u.indexOf(s))), { Ok: f, Err: p } = JSON.parse(d);
		if (!f) throw Error(p);
		return f;
	}
	static async film(e, t, a) {
		let o = await n(e);
		r(o, new TextEncoder().encode(t));
		let s = o.design();
		if (s) throw Error(i(o, s));
		r(o, new TextEncoder().encode(JSON.stringify(a)));
		let { Ok: c, Err: l } = JSON.parse(i(o, o.film()));
		if (!c) throw Error(l);
		return c;
	}
	run(e) {
		this.fine(this.exports.run(e)), this.at = Math.max(this.at, e);
	}
	runUntil(e, t) {
		r(this.exports, new TextEncoder().encode(JSON.stringify(e)));
		let n = JSON.parse(this.text(this.exports.run_until(t)));
		return this.at = n?.operation ?? Math.max(this.at, t), n;
	}
	view(e, t) {
		r(this.exports, new Uint8Array(Uint32Array.from(t).buffer));
		let n = this.text(this.exports.view(e));
		return this.at = e, n;
	}
	sample() {
		let e = this.exports.sample();
		return new Float64Array(this.exports.memory.buffer, e, 8 + 3 * this.about.caches.length).slice();
	}
	map() {
		let e = this.exports.map();
		return new Uint8Array(this.exports.memory.buffer, this.exports.text(), e);
	}
	check() {
		this.fine(this.exports.check());
	}
	profiles() {
		return JSON.parse(this.text(this.exports.profiles()));
	}
	text(e) {
		return i(this.exports, e);
	}
	fine(e) {
		if (e) throw Error(this.text(e));
	}
};
async function n(e) {
	return (e instanceof WebAssembly.Module ? await WebAssembly.instantiate(e, {}) : (await WebAssembly.instantiate(e, {})).instance).exports;
}
function r(e, t) {
	let n = e.room(t.length);
	new Uint8Array(e.memory.buffer, n, t.length).set(t);
}
function i(e, t) {
	return new TextDecoder().decode(new Uint8Array(e.memory.buffer, e.text(), t));
}
// src/replay/travel.ts
var a = 4096, o = 1024, s = 4 << 20, c = 384 << 20, l = 64 << 20, u = class {
	engine;
	length;
	hashes;
	constructor(e) {
		this.engine = e, this.length = e.exports.memory.buffer.byteLength, this.hashes = Float64Array.from({ length: this.length / a }, (e, t) => this.hash(t));
	}
	checkpoint() {
		let e = p(this.engine, this.length), t = [];
		for (let e = 0; e < this.hashes.length; e++) {
			let n = this.hash(e);
			n !== this.hashes[e] && (this.hashes[e] = n, t.push(e));
		}
		let n = new Uint8Array(t.length * a);
		return t.forEach((t, r) => n.set(e.subarray(t * a, (t + 1) * a), r * a)), {
			at: this.engine.at,
			pages: Uint32Array.from(t),
			bytes: n
		};
	}
	finish() {
		this.engine.run(this.engine.about.operations), this.engine.exports.reserve(s), p(this.engine, this.length);
	}
	hash(e) {
		return this.engine.exports.page_hash(e * a, a);
	}
}, d = class {
	free = [];
	made = 0;
	chunks = [];
	put(e) {
		let t = this.free.pop() ?? this.made++;
		return this.get(t).set(e), t;
	}
	get(e) {
		return (this.chunks[Math.floor(e / o)] ??= new Uint8Array(o * a)).subarray(e % o * a, (e % o + 1) * a);
	}
}, f = class {
	engine;
	every;
	operations;
	kept = 0;
	reran = 0;
	newest = 0;
	most;
	length;
	versions = /* @__PURE__ */ new Map();
	slots = new d();
	constructor(e, t, n) {
		this.engine = e, this.every = t, this.operations = e.about.operations;
		let { buffer: r } = e.exports.memory;
		this.length = r.byteLength, this.most = n ?? Math.max(c - this.length, l);
		let i = new Int32Array(r), o = (e) => {
			for (let t = e * a / 4; t < (e + 1) * a / 4; t++) if (i[t]) return !1;
			return !0;
		};
		for (let e = 0; e < this.length / a; e++) o(e) || this.keep(0, e, new Uint8Array(r, e * a, a));
	}
	get memory() {
		return this.length + this.kept;
	}
	get checkpoints() {
		return Math.floor(this.newest / this.every);
	}
	take({ at: e, pages: t, bytes: n }) {
		for (this.newest = e, t.forEach((t, r) => this.keep(e, t, n.subarray(r * a, (r + 1) * a))); this.kept > this.most && this.every < this.operations;) this.thin();
	}
	keep(e, t, n) {
		let r = this.versions.get(t) ?? [], i = r.at(-1);
		i && this.first(i[0]) === this.first(e) && this.drop(r.pop()), r.push([e, this.slots.put(n)]), this.versions.set(t, r), this.kept += a;
	}
	drop([, e]) {
		this.slots.free.push(e), this.kept -= a;
	}
	thin() {
		this.every *= 2;
		for (let [e, t] of this.versions) {
			let n = ([e], n) => n + 1 === t.length || this.first(e) < this.first(t[n + 1][0]);
			t.filter((e, t) => !n(e, t)).forEach((e) => this.drop(e)), this.versions.set(e, t.filter(n));
		}
	}
	first(e) {
		return Math.ceil(e / this.every);
	}
	to(e) {
		let t = Math.min(Math.floor(e / this.every), this.checkpoints) * this.every, { at: n } = this.engine;
		(n > e || n < t || e === 0) && (this.restore(t), this.reran += e - t), this.engine.run(e);
	}
	view(e, t) {
		return this.to(Math.max(e - 1, 0)), this.engine.view(e, t);
	}
	restore(e) {
		let t = p(this.engine, this.length);
		t.fill(0);
		for (let [n, r] of this.versions) {
			let i = r.findLast(([t]) => t <= e);
			i && t.set(this.slots.get(i[1]), n * a);
		}
		this.engine.at = e;
	}
};
function p({ exports: { memory: { buffer: t } } }, n) {
	if (t.byteLength !== n) throw new e();
	return new Uint8Array(t);
}
export { t as Engine, e as Grew, u as Recorder, f as Travel };
