// Content of a tab. Hidden tabs are not rendered again.

export default {
  template: `
    <div class="pg-panel" :class="{ hidden: !open }" :data-tab="title">
      <div class="pg-columns" v-memo="[open && {}]"><slot></slot></div>
    </div>`,
  props: { title: String, open: Boolean },
};
