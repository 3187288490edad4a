// Draws before and after under one divider, at any zoom; takes strokes of the mouse.

import { layerOf, watch } from "playground-layers";

const MOST_ZOOM = 32;

export default {
  template: `
    <div class="pg-viewer" :data-shown="shown.kind" :data-number="shown.number">
      <div class="pg-stage" ref="stage">
        <canvas ref="canvas" tabindex="0" role="img" :aria-label="label"
          @pointerdown="press" @pointermove="move" @pointerup="release" @pointercancel="release"
          @wheel.prevent="wheel" @dblclick="fit" @keydown="key"></canvas>
        <span class="pg-tag pg-left" v-show="before">{{ names[0] }}</span>
        <span class="pg-tag pg-right" v-show="after">{{ names[1] }}</span>
        <span class="pg-tag pg-kind" v-show="shown.kind === 'preview'">preview</span>
      </div>
      <div class="pg-tools">
        <span class="pg-space"></span>
        <button type="button" title="smaller" aria-label="smaller" @click="zoomBy(0.5)">&minus;</button>
        <span class="pg-zoom">{{ percent }} %</span>
        <button type="button" title="larger" aria-label="larger" @click="zoomBy(2)">+</button>
        <button type="button" @click="fit">fit</button>
      </div>
    </div>`,
  props: {
    session: String,
    layers: Object, // names of the layers that are shown: before and after
    names: { default: () => ["before", "after"] },
    label: { default: "before and after" },
    brush: { default: null }, // label, radius and color; null where nothing is drawn
    strokes: { default: () => [] },
    ratio: { default: 0.7 }, // most height of the stage, as a share of its width
  },
  data() {
    return {
      percent: 100, shown: { kind: "", number: 0 },
      before: false, after: false, // whether they are there
    };
  },
  watch: {
    strokes() { this.redraw(); },
    brush() { this.redraw(); },
  },
  mounted() {
    // not in data(): Vue need not watch them
    this.photo = null;
    this.view = { scale: 0, x: 0, y: 0 };
    this.divider = 0.5;
    this.pointers = new Map();
    this.line = null;
    this.unwatch = watch(this.session, (head) => this.take(head));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.$refs.stage);
  },
  beforeUnmount() {
    this.unwatch();
    this.observer.disconnect();
  },
  methods: {
    layer(side) { return layerOf(this.layers[side]); },
    // a layer has come, or there is none of this name any more
    take({ name, kind, number }) {
      if (!Object.values(this.layers).includes(name)) return;
      const before = this.layer("before");
      if (before && (!this.photo || this.photo.width !== before.region[2] || this.photo.height !== before.region[3])) {
        this.photo = { width: before.region[2], height: before.region[3] };
        this.resize();
        this.fit();
      }
      this.before = !!before;
      this.after = !!this.layer("after");
      // immediately: it is painted with the next frame
      this.draw();
      this.shown = { kind, number };
    },
    redraw() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.draw(); });
    },
    resize() {
      const width = this.$refs.stage.clientWidth;
      if (!width || !this.photo) return;
      const shape = Math.min(this.photo.height / this.photo.width, this.ratio);
      const height = Math.round(Math.min(width * shape, window.innerHeight * 0.72));
      const canvas = this.$refs.canvas;
      const dense = window.devicePixelRatio || 1;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
      const size = `${canvas.width}x${canvas.height}`;
      if (size !== this.size) { this.size = size; this.fit(); }
      this.draw();
    },
    fitScale() {
      const canvas = this.$refs.canvas;
      return Math.min(canvas.width / this.photo.width, canvas.height / this.photo.height);
    },
    fit() {
      if (!this.photo || !this.$refs.canvas.width) return;
      const canvas = this.$refs.canvas, scale = this.fitScale();
      this.setView({
        scale,
        x: (canvas.width - this.photo.width * scale) / 2,
        y: (canvas.height - this.photo.height * scale) / 2,
      });
    },
    setView(view) {
      const canvas = this.$refs.canvas, fitting = this.fitScale();
      const scale = Math.min(Math.max(view.scale, fitting), MOST_ZOOM * fitting);
      const inside = (offset, extent, room) =>
        extent <= room ? (room - extent) / 2 : Math.min(0, Math.max(room - extent, offset));
      this.view = {
        scale,
        x: inside(view.x, this.photo.width * scale, canvas.width),
        y: inside(view.y, this.photo.height * scale, canvas.height),
      };
      this.percent = Math.round((100 * scale) / (window.devicePixelRatio || 1));
      this.redraw();
    },
    zoomBy(factor, at) {
      if (!this.photo) return;
      const canvas = this.$refs.canvas;
      const [x, y] = at || [canvas.width / 2, canvas.height / 2];
      const scale = Math.min(Math.max(this.view.scale * factor, this.fitScale()), MOST_ZOOM * this.fitScale());
      const change = scale / this.view.scale;
      this.setView({ scale, x: x - (x - this.view.x) * change, y: y - (y - this.view.y) * change });
    },
    at(event) {
      const box = this.$refs.canvas.getBoundingClientRect(), dense = window.devicePixelRatio || 1;
      return [(event.clientX - box.left) * dense, (event.clientY - box.top) * dense];
    },
    onPhoto([x, y]) { return [(x - this.view.x) / this.view.scale, (y - this.view.y) / this.view.scale]; },
    dividerAt() {
      // the divider lies on the photo's part of the canvas
      const left = Math.max(0, this.view.x);
      const right = Math.min(this.$refs.canvas.width, this.view.x + this.photo.width * this.view.scale);
      return left + this.divider * (right - left);
    },
    press(event) {
      if (!this.photo) return;
      this.$refs.canvas.setPointerCapture(event.pointerId);
      const place = this.at(event);
      this.pointers.set(event.pointerId, place);
      const reach = (event.pointerType === "touch" ? 24 : 12) * (window.devicePixelRatio || 1);
      if (this.pointers.size === 2) { this.action = "pinch"; this.line = null; return; }
      if (this.after && Math.abs(place[0] - this.dividerAt()) < reach) this.action = "divide";
      else if (this.brush && event.button === 0) {
        this.action = "draw";
        this.line = [this.onPhoto(place)];
        this.redraw();
      } else this.action = "pan";
    },
    move(event) {
      if (!this.photo) return;
      const place = this.at(event), last = this.pointers.get(event.pointerId);
      if (!last) {
        const near = this.after && Math.abs(place[0] - this.dividerAt()) < 12;
        this.$refs.canvas.style.cursor = near ? "ew-resize" : this.brush ? "crosshair" : "grab";
        return;
      }
      if (this.action === "pinch" && this.pointers.size === 2) {
        const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
        const span = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
        this.zoomBy(span(place, other) / span(last, other), [(place[0] + other[0]) / 2, (place[1] + other[1]) / 2]);
      } else if (this.action === "divide") {
        const left = Math.max(0, this.view.x);
        const right = Math.min(this.$refs.canvas.width, this.view.x + this.photo.width * this.view.scale);
        this.divider = Math.min(1, Math.max(0, (place[0] - left) / (right - left)));
        this.setView(this.view);
      } else if (this.action === "draw") {
        this.line.push(this.onPhoto(place));
        this.redraw();
      } else if (this.action === "pan") {
        this.setView({ scale: this.view.scale, x: this.view.x + place[0] - last[0], y: this.view.y + place[1] - last[1] });
      }
      this.pointers.set(event.pointerId, place);
    },
    release(event) {
      this.pointers.delete(event.pointerId);
      if (this.action === "draw" && this.line) {
        const rounded = this.line.map(([x, y]) => [Math.round(10 * x) / 10, Math.round(10 * y) / 10]);
        this.$emit("stroke", { label: this.brush.label, radius: this.brush.radius, points: rounded });
        this.line = null;
      }
      this.action = null;
    },
    wheel(event) { if (this.photo) this.zoomBy(Math.exp(-event.deltaY / 400), this.at(event)); },
    key(event) {
      if (event.key === "ArrowLeft") this.divider = Math.max(0, this.divider - 0.05);
      else if (event.key === "ArrowRight") this.divider = Math.min(1, this.divider + 0.05);
      else if (event.key === "+") return this.zoomBy(2);
      else if (event.key === "-") return this.zoomBy(0.5);
      else return;
      event.preventDefault();
      if (this.photo) this.setView(this.view);
    },
    paint(context, canvas, region) {
      const { scale, x, y } = this.view;
      context.drawImage(canvas, x + region[0] * scale, y + region[1] * scale, region[2] * scale, region[3] * scale);
    },
    draw() {
      const canvas = this.$refs.canvas;
      if (!canvas || !canvas.width || !this.photo) return;
      const context = canvas.getContext("2d"), { scale, x, y } = this.view;
      const before = this.layer("before"), after = this.layer("after");
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.imageSmoothingEnabled = scale < 3;
      context.save();
      context.beginPath();
      context.rect(x, y, this.photo.width * scale, this.photo.height * scale);
      context.clip();
      if (before) this.paint(context, before.canvas, before.region);
      if (after) {
        const edge = this.dividerAt();
        context.save();
        context.beginPath();
        context.rect(edge, 0, canvas.width - edge, canvas.height);
        context.clip();
        context.imageSmoothingEnabled = scale < 3 || after.width < after.region[2];
        this.paint(context, after.canvas, after.region);
        context.restore();
      }
      this.drawStrokes(context);
      context.restore();
      if (after) this.drawDivider(context, this.dividerAt(), canvas.height);
    },
    drawStrokes(context) {
      const current = this.line && this.brush ? [{ ...this.brush, points: this.line }] : [];
      for (const stroke of [...this.strokes, ...current]) {
        context.lineCap = context.lineJoin = "round";
        const path = new Path2D();
        stroke.points.forEach(([px, py], i) => {
          const place = [this.view.x + px * this.view.scale, this.view.y + py * this.view.scale];
          if (i === 0) path.moveTo(...place);
          path.lineTo(...place);
        });
        const width = Math.max(2, 2 * stroke.radius * this.view.scale);
        context.strokeStyle = "rgba(255, 255, 255, 0.9)";
        context.lineWidth = width + 3;
        context.stroke(path);
        context.strokeStyle = stroke.color;
        context.lineWidth = width;
        context.stroke(path);
      }
    },
    drawDivider(context, edge, height) {
      const dense = window.devicePixelRatio || 1;
      context.fillStyle = "rgba(0, 0, 0, 0.35)";
      context.fillRect(edge - 2 * dense, 0, 4 * dense, height);
      context.fillStyle = "#fff";
      context.fillRect(edge - dense, 0, 2 * dense, height);
      context.beginPath();
      context.arc(edge, height / 2, 14 * dense, 0, 2 * Math.PI);
      context.shadowColor = "rgba(0, 0, 0, 0.4)";
      context.shadowBlur = 4 * dense;
      context.fill();
      context.shadowBlur = 0;
      context.strokeStyle = "#3f51b5";
      context.lineWidth = 2 * dense;
      context.beginPath();
      for (const side of [-1, 1]) {
        context.moveTo(edge + side * 4 * dense, height / 2 - 5 * dense);
        context.lineTo(edge + side * 8 * dense, height / 2);
        context.lineTo(edge + side * 4 * dense, height / 2 + 5 * dense);
      }
      context.stroke();
    },
  },
};
