// The content of a tab. While it is hidden it stays as it is: every change of the page renders what is open alone.

export default {
  template: `
    <div class="pg-panel" :class="{ hidden: !open }" :data-tab="title">
      <div class="pg-columns" v-memo="[open && {}]"><slot></slot></div>
    </div>`,
  props: { title: String, open: Boolean },
};
