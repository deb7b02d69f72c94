// PISCO in float64, as the library runs it: the same coins of a seed, Metropolis weights, full gradients of quadratics.
const LIMIT = 24; // agents: as many as there is data for
const ROTATIONS = [[13, 15, 26, 6], [17, 29, 16, 24]];
function threefry(key, count) { // Threefry 2x32 with 20 rounds, the generator of jax.random
  const keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1bd11bda];
  let a = (count[0] + keys[0]) | 0, b = (count[1] + keys[1]) | 0;
  for (let group = 0; group < 5; group++) {
    for (const turn of ROTATIONS[group % 2]) {
      a = (a + b) | 0;
      b = ((b << turn) | (b >>> (32 - turn))) ^ a;
    }
    a = (a + keys[(group + 1) % 3]) | 0;
    b = (b + keys[(group + 2) % 3] + group + 1) | 0;
  }
  return [a, b];
}
const foldIn = (key, number) => threefry(key, [0, number | 0]);
const coinStream = (seed) => foldIn([0, seed | 0], 2); // the third stream of a seed
function uniform(stream, round) { // u_k, from the seed and the round alone: 23 bits, as a float32
  const bits = threefry(foldIn(stream, round), [0, 0]);
  return ((bits[0] ^ bits[1]) >>> 9) / 2 ** 23;
}
function metropolis(count, links) { // w_ij = 1/(1 + max(d_i, d_j)); the diagonal takes what a row still lacks
  const degrees = new Array(count).fill(0);
  for (const [i, j] of links) { degrees[i]++; degrees[j]++; }
  const weights = Array.from({ length: count }, () => new Float64Array(count));
  for (const [i, j] of links) weights[i][j] = weights[j][i] = 1 / (1 + Math.max(degrees[i], degrees[j]));
  weights.forEach((row, i) => { row[i] = 1 - row.reduce((sum, w) => sum + w, 0); });
  return weights;
}
function mixingRate(weights) { // λ_w = 1 − ‖W − J‖₂², by power iteration on (W − J)²
  const n = weights.length;
  let vector = Float64Array.from({ length: n }, (_, i) => Math.sin(1 + 2.7 * i)), square = 0;
  const apply = (x) => {
    const mean = x.reduce((sum, v) => sum + v, 0) / n;
    return weights.map((row) => row.reduce((sum, w, j) => sum + w * x[j], -mean));
  };
  for (let turn = 0; turn < 600; turn++) {
    const next = apply(apply(vector)), size = Math.hypot(...next);
    if (size < 1e-300) return 1;
    square = size / Math.hypot(...vector);
    vector = next.map((v) => v / size);
  }
  return Math.max(0, 1 - square);
}
const combine = (list, make) => list.map((row, i) => row.map((_, e) => make(i, e)));
function meanOf(list) {
  return list[0].map((_, e) => list.reduce((sum, row) => sum + row[e], 0) / list.length);
}
class Pisco {
  // agents: [{hessian, minimizer}], links: pairs of places in that list
  constructor(agents, links, start, settings) {
    Object.assign(this, { agents, links, settings, round: 0, reached: false });
    this.weights = metropolis(agents.length, links);
    this.coins = coinStream(settings.seed);
    this.X = agents.map(() => [...start]);
    this.G = this.gradients(this.X);
    this.Y = this.G;
    this.optimum = this.solve();
    this.counts = { server: 0, gossip: 0, gradients: agents.length };
    this.rows = [this.measure()];
  }
  gradient(agent, x) {
    const { hessian: A, minimizer: b } = agent;
    const away = x.map((v, e) => v - b[e]);
    return A.map((row) => row.reduce((sum, a, e) => sum + a * away[e], 0));
  }
  gradients(X) { return this.agents.map((agent, i) => this.gradient(agent, X[i])); }
  mix(list) {
    if (this.reached) { const mean = meanOf(list); return list.map(() => [...mean]); }
    return combine(list, (i, e) => list.reduce((sum, row, j) => sum + this.weights[i][j] * row[e], 0));
  }
  next() { // one round of Algorithm 1
    const { localLr, commLr, localSteps, oneExchange, serverProb } = this.settings;
    this.reached = uniform(this.coins, this.round) < serverProb;
    let { X: x, Y: y, G: g } = this;
    const step = () => combine(x, (i, e) => x[i][e] - localLr * y[i][e]);
    const corrected = (fresh) => combine(y, (i, e) => y[i][e] + fresh[i][e] - g[i][e]);
    for (let local = 0; local < localSteps; local++) {
      x = step();
      const fresh = this.gradients(x);
      y = corrected(fresh);
      g = fresh;
    }
    const arrived = step();
    const moved = combine(x, (i, e) => (1 - commLr) * this.X[i][e] + commLr * arrived[i][e]);
    this.X = this.mix(moved);
    const fresh = this.gradients(this.X);
    if (oneExchange) { y = this.mix(y); this.Y = corrected(fresh); } else this.Y = this.mix(corrected(fresh));
    this.G = fresh;
    this.round++;
    const n = this.agents.length, exchanges = oneExchange ? 1 : 2;
    if (this.reached) this.counts.server += 2 * n * exchanges; else this.counts.gossip += 2 * this.links.length * exchanges;
    this.counts.gradients += n * (localSteps + 1);
    this.rows.push(this.measure());
  }
  measure() {
    const n = this.agents.length, mean = meanOf(this.X);
    const gradient = meanOf(this.agents.map((agent) => this.gradient(agent, mean)));
    const loss = this.agents.reduce((sum, agent) => {
      const away = mean.map((v, e) => v - agent.minimizer[e]);
      return sum + 0.5 * this.gradient(agent, mean).reduce((dot, v, e) => dot + v * away[e], 0);
    }, 0) / n;
    return {
      round: this.round, server: this.round ? this.reached : false, mean, loss, counts: { ...this.counts },
      grad_norm_sq: gradient.reduce((sum, v) => sum + v * v, 0),
      consensus_error: this.X.reduce((sum, x) => sum + x.reduce((s, v, e) => s + (v - mean[e]) ** 2, 0), 0) / n,
    };
  }
  solve() { // the minimiser of the mean: (Σ A)⁻¹ Σ A·b, two unknowns
    let [a, b, d, u, v] = [0, 0, 0, 0, 0];
    for (const { hessian: A, minimizer: m } of this.agents) {
      a += A[0][0]; b += A[0][1]; d += A[1][1];
      u += A[0][0] * m[0] + A[0][1] * m[1]; v += A[1][0] * m[0] + A[1][1] * m[1];
    }
    return [(d * u - b * v) / (a * d - b * b), (a * v - b * u) / (a * d - b * b)];
  }
}
