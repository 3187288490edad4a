// The lattice of the plane: a point that the mouse moves, its simplex, weights and taps, and the filter's response.

const SIDE = 600;

export default {
  template: `
    <div class="pg-plane" :data-number="number">
      <svg ref="svg" :viewBox="'0 0 ' + side + ' ' + side" role="img" aria-label="the lattice" tabindex="0"
        @pointerdown="press" @pointermove="move" @pointerup="held = false" @keydown="key">
        <image v-if="picture" :href="picture" x="0" y="0" :width="side" :height="side" preserveAspectRatio="none" />
        <template v-if="found">
          <line v-for="(edge, i) in edges" :key="'e' + i" class="pg-edge"
            :x1="edge[0]" :y1="edge[1]" :x2="edge[2]" :y2="edge[3]" />
          <circle v-for="r in [1, 2]" :key="'r' + r" class="pg-ring"
            :cx="px(point[0])" :cy="px(point[1])" :r="r * unit" />
          <circle v-for="(place, i) in found.lattice" :key="'l' + i" class="pg-lattice"
            :cx="px(place[0])" :cy="px(place[1])" r="3" />
          <polygon class="pg-simplex" :points="simplex" />
          <circle v-for="(place, i) in found.taps" :key="'t' + i" class="pg-tap"
            :cx="px(place[0])" :cy="px(place[1])" :r="6 + 9 * found.tap_weights[i]" />
          <g v-for="(place, i) in found.corners" :key="'c' + i">
            <line class="pg-arm" :x1="px(point[0])" :y1="px(point[1])" :x2="px(place[0])" :y2="px(place[1])" />
            <circle class="pg-corner" :cx="px(place[0])" :cy="px(place[1])" :r="4 + 8 * found.weights[i]" />
            <text class="pg-weight" :x="label(i)[0]" :y="label(i)[1]">{{ found.weights[i].toFixed(2) }}</text>
          </g>
        </template>
        <circle class="pg-point" :cx="px(point[0])" :cy="px(point[1])" r="7" />
      </svg>
    </div>`,
  props: { start: { default: () => [0, 0] } },
  data() {
    return { side: SIDE, found: null, point: [...this.start], picture: null, number: 0, held: false, edges: [] };
  },
  computed: {
    extent() { return this.found ? this.found.extent : 3; },
    unit() { return SIDE / (2 * this.extent); },
    simplex() { return this.found.corners.map(([x, y]) => `${this.px(x)},${this.px(y)}`).join(" "); },
  },
  methods: {
    px(value) { return (value + this.extent) * this.unit; },
    label(i) {
      // outside of the simplex, away from its middle
      const corners = this.found.corners, [x, y] = corners[i];
      const [mx, my] = [0, 1].map((axis) => (corners[0][axis] + corners[1][axis] + corners[2][axis]) / 3);
      const length = Math.hypot(x - mx, y - my) || 1;
      return [this.px(x + (0.3 * (x - mx)) / length), this.px(y + (0.3 * (y - my)) / length) + 5];
    },
    draw(found, number) {
      if (!this.found || this.found.lattice.length !== found.lattice.length) this.join(found.lattice);
      this.found = found;
      this.point = this.held ? this.point : found.point;
      this.picture = this.paint(found);
      this.number = number;
    },
    join(places) {
      // nearest lattice points are one unit apart
      this.edges = [];
      places.forEach((a, i) => places.slice(i + 1).forEach((b) => {
        if (Math.hypot(a[0] - b[0], a[1] - b[1]) < 1.01) this.edges.push([...a, ...b].map((value) => this.px(value)));
      }));
    },
    paint(found) {
      const bytes = Uint8Array.from(atob(found.response), (letter) => letter.charCodeAt(0));
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = found.side;
      const image = new ImageData(found.side, found.side);
      for (let i = 0; i < bytes.length; i++) {
        const share = bytes[i] / 255;
        image.data.set([255 - 192 * share, 255 - 174 * share, 255 - 74 * share, 255], 4 * i);
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
      return canvas.toDataURL();
    },
    press(event) {
      this.held = true;
      this.$refs.svg.setPointerCapture(event.pointerId);
      this.move(event);
    },
    move(event) {
      if (!this.held) return;
      const box = this.$refs.svg.getBoundingClientRect();
      const inside = (value) => Math.min(0.95, Math.max(-0.95, value)) * this.extent;
      this.place([
        inside((2 * (event.clientX - box.left)) / box.width - 1),
        inside((2 * (event.clientY - box.top)) / box.height - 1),
      ]);
    },
    key(event) {
      const step = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, -0.05], ArrowDown: [0, 0.05] }[event.key];
      if (!step) return;
      event.preventDefault();
      const most = 0.95 * this.extent;
      this.place(this.point.map((value, axis) => Math.min(most, Math.max(-most, value + step[axis]))));
    },
    place(point) {
      this.point = point;
      this.$emit("place", point.map((value) => Math.round(100 * value) / 100));
    },
  },
};
