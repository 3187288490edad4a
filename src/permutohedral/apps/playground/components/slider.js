// A slider over a list of numbers, which shows its number without waiting for the server.

export default {
  template: `
    <label class="pg-control">
      <span class="pg-caption"><span>{{ name }}</span><span class="pg-value">{{ values[at] }}{{ unit }}</span></span>
      <input type="range" min="0" :max="values.length - 1" step="1" :value="at" :aria-label="name"
        :aria-valuetext="values[at] + unit" @input="move">
    </label>`,
  props: { name: String, values: Array, start: Number, unit: String },
  data() {
    return { at: this.start };
  },
  methods: {
    move(event) {
      this.at = Number(event.target.value);
      this.$emit("move", this.at);
    },
    set(at) { this.at = at; },
  },
};
