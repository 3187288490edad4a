// Progress bar: the share that is done, or that something is computed.

export default {
  template: `
    <div class="pg-busy" role="progressbar" :data-busy="busy" :aria-valuenow="share">
      <div :class="{ 'pg-endless': share === null }" :style="share === null ? {} : { width: 100 * share + '%' }"></div>
    </div>`,
  data() {
    return { busy: false, share: null };
  },
  methods: {
    set(busy, share) {
      this.busy = busy;
      this.share = share;
    },
  },
};
