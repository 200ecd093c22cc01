// An embedding is known up to shift, turn, mirror and scale. Pure functions on [[x, y], …].

const mean = (points, axis) => points.reduce((sum, p) => sum + p[axis], 0) / points.length;

/** Center at zero and scale to a mean squared distance of one. */
export function normalize(points) {
  const [mx, my] = [mean(points, 0), mean(points, 1)];
  const size = Math.sqrt(points.reduce((sum, [x, y]) => sum + (x - mx) ** 2 + (y - my) ** 2, 0) / points.length) || 1;
  return points.map(([x, y]) => [(x - mx) / size, (y - my) / size]);
}

/**
 * Turn, and mirror if that fits better, `points` onto `reference`: Procrustes in the plane, where the
 * best angle is that of the sum of conj(p)·q over all points as complex numbers.
 */
export function alignTo(reference, points) {
  const fit = (flip) => {
    let [re, im] = [0, 0];
    points.forEach(([x, y0], k) => {
      const y = flip * y0;
      const [u, v] = reference[k];
      re += x * u + y * v;
      im += x * v - y * u;
    });
    return { flip, re, im, gain: Math.hypot(re, im) };
  };
  const [straight, mirrored] = [fit(1), fit(-1)];
  const best = mirrored.gain > straight.gain * (1 + 1e-9) ? mirrored : straight;
  if (best.gain === 0) return points;
  const [c, s] = [best.re / best.gain, best.im / best.gain];
  return points.map(([x, y0]) => {
    const y = best.flip * y0;
    return [c * x - s * y, s * x + c * y];
  });
}
