// Shows before and after under one divider, zoomed and moved by scrolling; takes strokes of the mouse.

const MOST_ZOOM = 32;

export default {
  template: `
    <div class="pg-viewer" :data-shown="after ? shown.kind : ''" :data-number="shown.number">
      <div class="pg-stage" :style="{ '--ratio': size[0] / size[1] }" @wheel.prevent="wheel" @dblclick="zoomTo(1)">
        <div class="pg-scroll" ref="scroll" :class="{ 'pg-draws': brush }" @scroll="look"
          @pointerdown="press" @pointermove="move" @pointerup="release" @pointercancel="release">
          <div class="pg-area" ref="area" :class="{ 'pg-pixels': scale >= 3 }" :style="{ width: 100 * zoom + '%' }">
            <img v-if="before" :src="before.url" :style="place(before)" :alt="names[0]" draggable="false">
            <div v-if="after" class="pg-after" :style="{ clipPath: 'inset(0 0 0 ' + edge + '%)' }">
              <img :src="after.url" :style="place(after)" :alt="names[1]" draggable="false" @load="loaded">
            </div>
            <svg :viewBox="'0 0 ' + size.join(' ')">
              <polyline v-for="stroke in drawn" :points="stroke.points.concat(stroke.points.slice(-1)).join(' ')"
                :stroke="stroke.color" :stroke-width="2 * stroke.radius"></polyline>
            </svg>
          </div>
        </div>
        <div v-if="after" class="pg-line" :style="{ left: divider + '%' }"></div>
        <input v-if="after" type="range" class="pg-divider" min="0" max="100" step="0.1" v-model="divider"
          :aria-label="'divider of ' + names.join(' and ')">
        <span class="pg-tag pg-left" v-show="before">{{ names[0] }}</span>
        <span class="pg-tag pg-right" v-show="after">{{ names[1] }}</span>
        <span class="pg-tag pg-kind" v-show="after && shown.kind === 'preview'">preview</span>
      </div>
      <div class="pg-tools">
        <button type="button" aria-label="smaller" @click="zoomTo(zoom / 2)">&minus;</button>
        <span class="pg-zoom">{{ Math.round(100 * scale) }} %</span>
        <button type="button" aria-label="larger" @click="zoomTo(zoom * 2)">+</button>
        <button type="button" @click="zoomTo(1)">fit</button>
      </div>
    </div>`,
  props: {
    names: Array,
    size: { default: () => [10, 7] }, // width and height of the photo
    before: Object, // url and region of an image; of the one after the divider also kind and number
    after: Object,
    brush: { default: null }, // label, radius and color; null where nothing is drawn
    strokes: { default: () => [] },
  },
  data() {
    // left and width: of the visible part, in pixels of the screen
    return { shown: { kind: "", number: 0 }, zoom: 1, divider: 50, left: 0, width: 1, line: null, held: false };
  },
  computed: {
    scale() { return (this.width * this.zoom) / this.size[0]; },
    edge() { return (this.left + (this.divider / 100) * this.width) / (this.width * this.zoom) * 100; },
    drawn() { return this.line ? [...this.strokes, { ...this.brush, points: this.line }] : this.strokes; },
  },
  watch: {
    size() { this.zoom = 1; this.$nextTick(this.look); },
  },
  mounted() {
    this.observer = new ResizeObserver(this.look);
    this.observer.observe(this.$refs.scroll);
  },
  beforeUnmount() { this.observer.disconnect(); },
  methods: {
    place({ region }) {
      const share = (index) => `${(100 * region[index]) / this.size[index % 2]}%`;
      return { left: share(0), top: share(1), width: share(2), height: share(3) };
    },
    loaded() { if (this.after) this.shown = { kind: this.after.kind, number: this.after.number }; },
    look() {
      this.left = this.$refs.scroll.scrollLeft;
      this.width = this.$refs.scroll.clientWidth || 1;
    },
    // the point at x and y of the visible part stays where it is
    zoomTo(zoom, x = this.width / 2, y = this.$refs.scroll.clientHeight / 2) {
      const next = Math.min(MOST_ZOOM, Math.max(1, zoom)), change = next / this.zoom, { scroll } = this.$refs;
      const left = (scroll.scrollLeft + x) * change - x, top = (scroll.scrollTop + y) * change - y;
      this.zoom = next;
      this.$nextTick(() => { scroll.scrollTo(left, top); this.look(); });
    },
    wheel(event) {
      const box = this.$refs.scroll.getBoundingClientRect();
      this.zoomTo(this.zoom * Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
    },
    point(event) {
      const box = this.$refs.area.getBoundingClientRect();
      const inPhoto = (at, extent, size) => Math.round((10 * size * at) / extent) / 10;
      return [inPhoto(event.clientX - box.left, box.width, this.size[0]),
        inPhoto(event.clientY - box.top, box.height, this.size[1])];
    },
    press(event) {
      if (!this.before || event.button !== 0 || (!this.brush && event.pointerType === "touch")) return;
      event.currentTarget.setPointerCapture(event.pointerId);
      this.held = true;
      if (this.brush) this.line = [this.point(event)];
    },
    move(event) {
      if (this.line) this.line.push(this.point(event));
      else if (this.held) this.$refs.scroll.scrollBy(-event.movementX, -event.movementY);
    },
    release(event) {
      // the browser cancels strokes of two fingers, which zoom
      if (this.line && event.type === "pointerup") {
        this.$emit("stroke", { label: this.brush.label, radius: this.brush.radius, points: this.line });
      }
      this.line = null;
      this.held = false;
    },
  },
};
