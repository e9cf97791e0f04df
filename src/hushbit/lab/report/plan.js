// Predictions of `hushbit plan` for other numbers of users, rounds, epsilons and bits per weight.
// The formulas are those of hushbit.tuning.plan and hushbit.privacy. Epsilons that are shown are
// rounded up. Tests compare them with those of the library.
"use strict";
const data = JSON.parse(document.getElementById("plan-data").textContent);
const MOST_PER_BIT = 64, MOST_PER_BIT_OF_TALLY = 8, LARGEST_EXPONENT = 100;
const beta = (perBit) => Math.tanh(perBit / 2);

// ln Gamma by Stirling's series.
function logGamma(x) {
  let shift = 0;
  for (; x < 12; x += 1) shift += Math.log(x);
  return (x - 0.5) * Math.log(x) - x + 0.9189385332046727 + 1 / (12 * x) - 1 / (360 * x ** 3) - shift;
}

// The largest argument up to `most` at which `fits` holds; it holds below that argument.
function largest(fits, most) {
  if (fits(most)) return most;
  let low = 0, high = most;
  for (let step = 0; step < 60; step += 1) {
    const middle = (low + high) / 2;
    if (fits(middle)) low = middle; else high = middle;
  }
  return low;
}

// Delta of `bits` differing bits (privacy/composition.py). Many bits are summed in steps of a small
// part of the standard deviation; callers leave 5 % of delta for the error of the steps.
function deltaOfBits(perBit, bits, epsilon) {
  const flip = 1 / (1 + Math.exp(perBit)), keep = 1 - flip;
  const deviation = Math.sqrt(bits * flip * keep), step = Math.max(1, Math.floor(deviation / 100));
  const top = Math.min(Math.ceil((bits - epsilon / perBit) / 2) - 1, Math.ceil(bits * flip + 12 * deviation), bits);
  const all = logGamma(bits + 1), logFlip = Math.log(flip), logKeep = Math.log(keep);
  let total = 0;
  for (let flips = top; flips >= 0; flips -= step) {
    const log = all - logGamma(flips + 1) - logGamma(bits - flips + 1) + flips * logFlip + (bits - flips) * logKeep;
    const term = Math.exp(log) * -Math.expm1(Math.min(0, epsilon - perBit * (bits - 2 * flips)));
    total += step * term;
    if (flips < bits * flip && term < 1e-12 * total) break;
    if (flips < bits * flip - 40 * deviation - 40) break;
  }
  return total;
}
const STEP_SHARE = 0.95;
function epsilonOfBits(perBit, bits, delta) {
  const pure = perBit * bits;
  const below = largest((gap) => deltaOfBits(perBit, bits, pure - gap) <= STEP_SHARE * delta, pure);
  return pure - below;
}

// Epsilon of zCDP (privacy/renyi.py).
function epsilonOfZcdp(rho, delta) {
  let best = rho + 2 * Math.sqrt(-rho * Math.log(delta)), width = 1e3;
  let centre = Math.sqrt(-Math.log(delta) / Math.max(rho, 1e-200));
  for (let search = 0; search < 6; search += 1, width **= 0.25) {
    const middle = centre;
    let least = Infinity;
    for (let place = -200; place <= 200; place += 1) {
      const above = middle * width ** (place / 200), order = 1 + above;
      const bound = rho * order + Math.log(above / order) - (Math.log(order) + Math.log(delta)) / above;
      if (bound < least) { least = bound; centre = above; }
    }
    best = Math.min(best, least);
  }
  return Math.max(0, best);
}

// Against the server: the smallest of the pure sum, exact composition and zCDP.
function serverEpsilon(option, perBit, rounds, delta) {
  const bits = option.sent * rounds, rho = option.ratio ** 2 * perBit ** 2 / 2;
  const found = [perBit * bits, epsilonOfBits(perBit, bits, delta)];
  if (rho < option.sent * perBit ** 2 / 2) found.push(epsilonOfZcdp(rho * rounds, delta));
  return Math.min(...found);
}

// Voters that the accountant of tallies counts: those of the smallest split (privacy/central.py).
function countedVoters(honest) {
  const others = Math.min(honest, 1e6) - 1, cells = honest <= 1e4 ? 128 : 48;
  return 1 + (others <= 2 * cells ? others : others - Math.ceil(others / cells));
}

// Place of a value in a list: the index below it and the share of the way to the next one.
function place(list, value) {
  const last = list.length - 1;
  if (value <= list[0]) return [0, 0];
  if (value >= list[last]) return [last - 1, 1];
  let index = 0;
  while (list[index + 1] < value) index += 1;
  return [index, Math.log(value / list[index]) / Math.log(list[index + 1] / list[index])];
}

// The divergence of a tally is that of Gaussian noise of the same variance times 1 + excess. The
// excess falls with the number of voters and grows with epsilon. It is interpolated between stored
// values, with a margin of 10 %; where it changes quickly, the larger (up) or smaller (down) stored
// value is taken. null: no bound is proved.
const INTERPOLATED_UP_TO = 2;
function excessOf(number, perBit, voters, up) {
  const { voters: rows, epsilons, excess } = data.tally;
  const [row, along] = place(rows, voters), [column, across] = place(epsilons, perBit);
  const at = (r, c) => excess[r * epsilons.length + c][number];
  const last = rows[rows.length - 1], beyond = voters <= last ? 1 : up ? last / voters : 0;
  if (at(row, column + 1) === null && up) return null;
  if (perBit > INTERPOLATED_UP_TO || at(row, column + 1) === null) {
    const log = up ? at(row + (voters >= last), column + 1) : at(row + 1, column);
    return log === null ? null : Math.exp(log) * beyond;
  }
  const mean = (r) => at(r, column) + across * (at(r, column + 1) - at(r, column));
  return Math.exp(mean(row) + along * (mean(row + 1) - mean(row))) * beyond * (up ? 1.1 : 0.9);
}

// Epsilon of the tallies of `rounds` rounds by Renyi orders, above (up) or below the library's.
function tallyEpsilon(option, perBit, honest, rounds, delta, up) {
  const voters = countedVoters(honest), spread = beta(perBit) ** 2;
  const square = spread * Math.min(option.ratio ** 2, option.sent) * (up ? 1.002 : 0.998);
  const gaussian = rounds * square / (2 * voters * (1 - spread) / 4);
  let least = Infinity;
  data.tally.orders.forEach((order, number) => {
    const excess = order * perBit > LARGEST_EXPONENT ? null : excessOf(number, perBit, voters, up);
    if (excess === null) return;
    const divergence = gaussian * order * (1 + excess);
    least = Math.min(least, divergence + Math.log1p(-1 / order) - Math.log(order * delta) / (order - 1));
  });
  return Math.max(0, least);
}
function modelEpsilon(option, perBit, honest, rounds, delta) {
  return Math.min(tallyEpsilon(option, perBit, honest, rounds, delta, true), serverEpsilon(option, perBit, rounds, delta));
}

// Number of blocks that a user reports under a pure budget (tuning/calibrate.py).
function bestSubset(epsilon) {
  const near = Math.floor(epsilon / 2.177);
  const cost = (sent) => 1 / (sent * Math.tanh(epsilon / (2 * sent)) ** 2);
  let best = Math.max(1, near - 1);
  for (let sent = best; sent < near + 3; sent += 1) if (cost(sent) < cost(best)) best = sent;
  return best;
}

// The largest rho whose epsilon is within the budget; the same for all users and rounds.
const knownRho = new Map();
function zcdpFor(epsilon, delta) {
  if (!knownRho.has(epsilon)) {
    knownRho.set(epsilon, largest((rho) => epsilonOfZcdp(rho, delta) <= epsilon, epsilon));
  }
  return knownRho.get(epsilon);
}

// The largest epsilon per bit for which zCDP or exact composition proves the budget. `share` of delta
// is below 1 for a value below the library's, above 1 for one above it.
function clippedPerBit(option, epsilon, times, delta, share) {
  const bits = option.sent * times;
  const fits = (one) => one * bits <= epsilon || deltaOfBits(one, bits, epsilon) <= share * delta;
  const byNorm = Math.min(MOST_PER_BIT, Math.sqrt(2 * zcdpFor(epsilon, delta) / times) / option.ratio);
  return fits(byNorm) ? Math.max(byNorm, largest(fits, MOST_PER_BIT)) : byNorm;
}

// All options of a plan. Their noise is gain / beta² + rest; `ratio` is the clip divided by the radius.
// perBit(up) is the epsilon per bit: at most the library's, or with up = false at least the library's.
function options(values) {
  const { dim, budget, clip, radius, rotatedRadius, userRms } = data;
  if (budget.per === "bit") return data.bits[values.bits].map((one) => ({ ...one, perBit: () => values.epsilon }));
  const times = budget.per === "run" ? values.rounds : 1, found = [];
  for (const points of [radius, rotatedRadius]) {
    const whole = { sent: dim, payload: dim, gain: points ** 2, rest: -(userRms ** 2), ratio: clip / points, proved: true };
    const byServer = (up) => clippedPerBit(whole, values.epsilon, times, budget.delta, up ? STEP_SHARE : 1 / STEP_SHARE);
    if (budget.against === "model") {
      const fits = (up) => (one) => tallyEpsilon(whole, one, values.honest, times, budget.delta, up) <= values.epsilon;
      const perBit = (up) => Math.min(MOST_PER_BIT_OF_TALLY, Math.max(byServer(up), largest(fits(up), MOST_PER_BIT_OF_TALLY)));
      found.push({ ...whole, perBit });
      continue;
    }
    const sent = Math.min(bestSubset(values.epsilon / times), dim), equal = values.epsilon / (sent * times);
    found.push({ ...whole, sent, payload: sent, gain: points ** 2 * dim / sent, proved: false, perBit: () => equal });
    if (budget.delta > 0) found.push({ ...whole, perBit: byServer });
  }
  return found;
}

// The option with the least noise, with the power of the signal divided by its noise.
function bestOption(values) {
  const { honest } = data;
  const voters = honest === null ? null : honest.share === null ? Math.min(honest.number, values.users) : Math.max(1, Math.floor(honest.share * values.users + 1e-9));
  const listed = options({ ...values, honest: voters }).map((one) => ({ ...one, noise: one.gain / beta(one.perBit(true)) ** 2 + one.rest }));
  const best = listed.reduce((one, other) => (other.noise < one.noise ? other : one));
  return { ...best, honest: voters, ratioOfPowers: data.signal ** 2 / best.noise };
}
const decibelsOf = (users, best) => 10 * Math.log10(users * best.ratioOfPowers);

// The figures of the best option, with `values` {users, rounds, epsilon, bits}.
function predict(values) {
  const { budget, delta } = data, { rounds } = values;
  const best = bestOption(values), perBit = best.perBit(false);
  // The library spends at most the budget.
  const within = (figure, against, unit) => (budget.per === unit && budget.against === against && budget.delta === delta ? Math.min(figure, values.epsilon) : figure);
  const proved = best.proved && best.honest !== null;
  return {
    snr: decibelsOf(values.users, best),
    server: within(serverEpsilon(best, perBit, rounds, delta), "server", "run"),
    message: within(serverEpsilon(best, perBit, 1, delta), "server", "message"),
    model: proved ? within(modelEpsilon(best, perBit, best.honest, rounds, delta), "model", "run") : null,
    perBit,
    bits: best.payload,
    bytes: data.overhead + Math.ceil(best.payload / 8),
    needed: Math.max(1, Math.ceil(10 ** (data.target / 10) / best.ratioOfPowers * (1 - 1e-12))),
    honest: best.honest,
    proved: best.proved,
  };
}

// The page.
const element = (id) => document.getElementById(id);
const write = (id, text) => { element(id).textContent = text; };
const count = (number) => Math.round(number).toLocaleString("en-US");
const decibels = (snr) => `${snr.toFixed(1).replace("-", "−")} dB`;

// Three significant digits, rounded up.
function roundedUp(value) {
  if (!Number.isFinite(value)) return "infinite";
  if (value === 0) return "0";
  const unit = 10 ** (Math.floor(Math.log10(value)) - 2);
  const up = Math.ceil((value / unit) * (1 - 1e-9)) * unit;
  return up >= 100 ? count(up) : String(Number(up.toPrecision(3)));
}
function byteText(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1e6 ? `${(bytes / 1e3).toPrecision(3)} kB` : `${(bytes / 1e6).toPrecision(3)} MB`;
}
const runText = (rounds) => `run of ${count(rounds)} round${rounds === 1 ? "" : "s"}`;

function chosen() {
  const at = (name) => data.stops[name][Number(element(name).value)];
  return { users: at("users"), rounds: at("rounds"), epsilon: at("epsilon"), bits: Number(element("bits").value) };
}

function show() {
  const values = chosen(), found = predict(values);
  const perWeight = String(Number((found.bits / data.dim).toPrecision(3)));
  const texts = { users: count(values.users), rounds: count(values.rounds), epsilon: String(values.epsilon), bits: perWeight };
  for (const [name, text] of Object.entries(texts)) {
    write(`${name}-value`, text);
    element(name).setAttribute("aria-valuetext", text);
  }
  const noise = 10 ** (-found.snr / 20), run = runText(values.rounds);
  write("snr", decibels(found.snr));
  write("error", `noise ${noise >= 10 ? count(noise) : noise.toPrecision(2)} times the mean update`);
  write("server", `ε ${roundedUp(found.server)}`);
  write("server-unit", `per ${run} at delta ${data.deltaText}`);
  const proved = found.model !== null;
  write("model", proved ? `ε ${roundedUp(found.model)}` : "not proved");
  write("model-unit", proved ? `per ${run} at delta ${data.deltaText}` : "the figure against the server holds");
  write("bytes", byteText(found.bytes));
  write("needed", count(found.needed));
  write("server-text", `Epsilon ${roundedUp(found.perBit)} per bit, ${roundedUp(found.message)} per message and ${roundedUp(found.server)} per ${run}, the last two at delta ${data.deltaText}.`);
  element("model-assumes").hidden = !proved;
  const reason = found.proved ? "it needs the number of honest voters: --honest" : "it is proved for two points and one bit for each weight only";
  write("model-text", proved
    ? `Epsilon ${roundedUp(found.model)} per ${run} at delta ${data.deltaText}; ${data.relation}.`
    : `Nothing beyond the figures against the server: ${reason}.`);
  if (proved) write("voters", found.honest === 1 ? "1 voter" : `at least ${count(found.honest)} voters`);
  draw(values, found);
}

// SNR against epsilon; the mark is the chosen epsilon.
function draw(values, found) {
  const stops = data.stops.epsilon;
  const ratios = stops.map((epsilon) => decibelsOf(values.users, bestOption({ ...values, epsilon })));
  const low = Math.min(...ratios), span = Math.max(...ratios) - low || 1;
  const x = (epsilon) => 8 + 384 * Math.log(epsilon / stops[0]) / (Math.log(stops[stops.length - 1] / stops[0]) || 1);
  const y = (snr) => 112 - 100 * (snr - low) / span;
  element("curve").setAttribute("d", "M" + stops.map((epsilon, n) => `${x(epsilon).toFixed(1)} ${y(ratios[n]).toFixed(1)}`).join("L"));
  element("mark").setAttribute("cx", x(values.epsilon));
  element("mark").setAttribute("cy", y(found.snr));
  const last = stops.length - 1;
  write("first", `${decibels(ratios[0])} at epsilon ${stops[0]}`);
  write("last", `${decibels(ratios[last])} at epsilon ${stops[last]}`);
  write("chart-text", `SNR of one round by epsilon ${data.unit}, for ${count(values.users)} users: ${decibels(found.snr)} at epsilon ${values.epsilon}`);
}

for (const name of ["users", "rounds", "epsilon", "bits"]) element(name).addEventListener("input", show);
show();
