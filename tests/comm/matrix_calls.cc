// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/matrix_calls.h"

#include <string>
#include <utility>

namespace ivy::comm::test {
namespace {

constexpr std::size_t kGap = 3;

Layout make_layout(std::vector<std::size_t> counts, bool has_gaps) {
  Layout layout;
  layout.counts = std::move(counts);
  layout.begins.resize(layout.counts.size());
  layout.gap = has_gaps ? kGap : 0;
  const std::size_t ranks = layout.counts.size();
  for (std::size_t i = 0; i < ranks; ++i) {
    const std::size_t rank = has_gaps ? ranks - 1 - i : i;
    layout.begins[rank] = layout.extent + layout.gap;
    layout.extent = layout.begins[rank] + layout.counts[rank];
  }
  return layout;
}

Layout even(std::size_t count, std::size_t ranks) {
  return make_layout(std::vector(ranks, count), false);
}

// Writes the blocks of one sequence to their locations.
void fill_blocks(Buffer& buffer, const Bytes& period, std::size_t element, const Layout& layout) {
  for (int rank = 0; rank < static_cast<int>(layout.counts.size()); ++rank) {
    buffer.fill(period, element, layout.begin(rank), layout.count(rank), layout.before(rank));
  }
}

bool has_clean_gaps(const Buffer& buffer, std::size_t element, const Layout& layout) {
  bool is_clean = true;
  for (const std::size_t begin : layout.begins) {
    is_clean &= buffer.is_untouched((begin - layout.gap) * element, begin * element);
  }
  return is_clean;
}

const void* given(const Case& c, Buffer& send) {
  return c.mode == BufferMode::kInPlace ? IVY_IN_PLACE : send.data();
}

std::string text_of(const Case& c) {
  const char* const mode_names[] = {"out", "in place", "unaligned"};
  return std::string(reduce_op_name(c.kind.op)) + " of " + std::to_string(c.count) + " " +
         std::string(dtype_name(c.kind.dtype)) + ", " +
         mode_names[static_cast<std::size_t>(c.mode)] + (c.has_gaps ? ", gaps" : "");
}

}  // namespace

std::size_t Layout::before(int rank) const {
  std::size_t sum = 0;
  for (int other = 0; other < rank; ++other) sum += count(other);
  return sum;
}

Caller::Caller(ivy_comm* comm, const Hosts& hosts, bool* is_ok)
    : comm_(comm),
      rank_(ivy_comm_rank(comm)),
      size_(ivy_comm_size(comm)),
      is_ok_(is_ok),
      expected_(hosts) {
  call_.struct_bytes = sizeof call_;
  call_.factor = factor_of(rank_);
}

// ---- One call -----------------------------------------------------------------------------------

const ivy_call* Caller::how() {
  work_ = nullptr;
  call_.work = makes_works_ ? &work_ : nullptr;
  return &call_;
}

void Caller::look(const char* operation, const Case& c, int code, const Both& buffers,
                  std::function<bool()> is_right) {
  const bool is_work = makes_works_;
  const auto check = [=, this, is_right = std::move(is_right)](int end) {
    const bool is_guarded = buffers->send.is_guarded() && buffers->receive.is_guarded();
    if (end == IVY_OK && is_guarded && is_right()) return;
    if (end != IVY_OK) *is_ok_ = false;
    ADD_FAILURE() << operation << " " << text_of(c) << (is_work ? ", as work" : "") << ": "
                  << (end != IVY_OK ? ivy_last_error()
                      : is_guarded  ? "wrong data"
                                    : "wrote beside the buffer");
  };
  if (is_work && code == IVY_OK) {
    pending_.push_back({work_, check});
  } else {
    check(code);
  }
}

void Caller::settle() {
  makes_works_ = false;
  for (; !pending_.empty(); pending_.pop_back()) {
    const Pending& last = pending_.back();
    const int code = ivy_work_wait(last.work, -1);
    last.check(code);
    EXPECT_EQ(ivy_work_free(last.work), IVY_OK) << ivy_last_error();
  }
}

Caller::Both Caller::make_empty(const Case& c, std::size_t send, std::size_t receive) {
  return std::make_shared<Buffers>(
      Buffers{Buffer(send * c.element(), c.mode), Buffer(receive * c.element(), c.mode)});
}

Caller::Both Caller::make(const Case& c, std::size_t send, std::size_t receive) {
  const Both both = make_empty(c, send, receive);
  both->send.fill(own(c), c.element(), 0, send);
  return both;
}

// Rank r has count / (r % 3 + 1) elements, and every fifth rank has none.
Layout Caller::uneven(const Case& c) const {
  std::vector<std::size_t> counts;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    counts.push_back(rank % 5 == 4 ? 0 : c.count / (rank % 3 + 1));
  }
  return make_layout(std::move(counts), c.has_gaps);
}

// Rank a sends (a + 2b) % 3 times `count` elements to rank b, so that some blocks are empty.
Layout Caller::exchanged(const Case& c, bool gives) const {
  std::vector<std::size_t> counts;
  for (int other = 0; other < size_; ++other) {
    const int from = gives ? rank_ : other;
    const int to = gives ? other : rank_;
    counts.push_back(c.count * static_cast<std::size_t>((from + 2 * to) % 3));
  }
  return make_layout(std::move(counts), c.has_gaps);
}

// Checks that the buffer holds the start of every rank's input, and nothing in the gaps.
bool Caller::holds_all(Buffer& buffer, const Case& c, const Layout& layout) {
  bool is_right = has_clean_gaps(buffer, c.element(), layout);
  for (int from = 0; from < size_; ++from) {
    is_right &= buffer.holds(input(from, c), c.element(), layout.begin(from), layout.count(from));
  }
  return is_right;
}

// ---- The operations -----------------------------------------------------------------------------

void Caller::all_reduce(const Case& c, int) {
  const Both both = make(c, c.count, c.count);
  Buffer& result = c.mode == BufferMode::kInPlace ? both->send : both->receive;
  const int code = ivy_all_reduce(comm_, given(c, both->send), result.data(), c.count, c.type(),
                                  c.reduction(), how());
  look("all_reduce", c, code, both, [this, c, &result] {
    return result.holds(expected_.reduced(c.kind), c.element(), 0, c.count);
  });
}

// On ranks other than the root, the buffer must not change.
void Caller::reduce(const Case& c, int root) {
  const Both both = make(c, c.count, c.count);
  const bool is_root = rank_ == root;
  const bool is_in_place = c.mode == BufferMode::kInPlace;
  Buffer& result = is_in_place ? both->send : both->receive;
  const int code =
      ivy_reduce(comm_, given(c, both->send), is_root || is_in_place ? result.data() : nullptr,
                 c.count, c.type(), c.reduction(), root, how());
  look("reduce", c, code, both, [=, this, &result] {
    if (!is_root) return both->send.holds(own(c), c.element(), 0, c.count);
    return result.holds(expected_.reduced(c.kind), c.element(), 0, c.count);
  });
}

void Caller::broadcast(const Case& c, int root) {
  const Both both = make(c, c.count, 0);
  const int code = ivy_broadcast(comm_, both->send.data(), c.count, c.type(), root, how());
  look("broadcast", c, code, both,
       [=, this] { return both->send.holds(input(root, c), c.element(), 0, c.count); });
}

void Caller::all_gather(const Case& c, int) {
  const Layout layout = even(c.count, ranks());
  const Both both = make(c, c.count, layout.extent);
  both->receive.fill(own(c), c.element(), layout.begin(rank_), c.count);
  const int code =
      ivy_all_gather(comm_, given(c, both->send), both->receive.data(), c.count, c.type(), how());
  look("all_gather", c, code, both, [=, this] { return holds_all(both->receive, c, layout); });
}

void Caller::all_gather_v(const Case& c, int) {
  const Layout layout = uneven(c);
  const Both both = make(c, layout.count(rank_), layout.extent);
  both->receive.fill(own(c), c.element(), layout.begin(rank_), layout.count(rank_));
  const int code = ivy_all_gather_v(comm_, given(c, both->send), both->receive.data(),
                                    layout.counts.data(), layout.displacements(), c.type(), how());
  look("all_gather_v", c, code, both, [=, this] { return holds_all(both->receive, c, layout); });
}

void Caller::reduce_scatter(const Case& c, int) {
  const Both both = make(c, c.count * ranks(), c.count);
  Buffer& result = c.mode == BufferMode::kInPlace ? both->send : both->receive;
  const int code = ivy_reduce_scatter(comm_, given(c, both->send), result.data(), c.count, c.type(),
                                      c.reduction(), how());
  look("reduce_scatter", c, code, both, [=, this, &result] {
    return result.holds(expected_.reduced(c.kind), c.element(), 0, c.count,
                        static_cast<std::size_t>(rank_) * c.count);
  });
}

void Caller::reduce_scatter_v(const Case& c, int) {
  Case without_gaps = c;
  without_gaps.has_gaps = false;
  const Layout layout = uneven(without_gaps);
  const Both both = make(c, layout.extent, layout.count(rank_));
  Buffer& result = c.mode == BufferMode::kInPlace ? both->send : both->receive;
  const int code = ivy_reduce_scatter_v(comm_, given(c, both->send), result.data(),
                                        layout.counts.data(), c.type(), c.reduction(), how());
  look("reduce_scatter_v", c, code, both, [=, this, &result] {
    return result.holds(expected_.reduced(c.kind), c.element(), 0, layout.count(rank_),
                        layout.before(rank_));
  });
}

void Caller::gather(const Case& c, int root) {
  const bool is_root = rank_ == root;
  const Layout layout = even(c.count, ranks());
  const Both both = make(c, c.count, is_root ? layout.extent : 0);
  if (is_root) both->receive.fill(own(c), c.element(), layout.begin(rank_), c.count);
  const int code =
      ivy_gather(comm_, is_root ? given(c, both->send) : both->send.data(),
                 is_root ? both->receive.data() : nullptr, c.count, c.type(), root, how());
  look("gather", c, code, both,
       [=, this] { return !is_root || holds_all(both->receive, c, layout); });
}

void Caller::gather_v(const Case& c, int root) {
  const bool is_root = rank_ == root;
  const Layout layout = uneven(c);
  const std::size_t mine = layout.count(rank_);
  const Both both = make(c, mine, is_root ? layout.extent : 0);
  if (is_root) both->receive.fill(own(c), c.element(), layout.begin(rank_), mine);
  const int code = ivy_gather_v(comm_, is_root ? given(c, both->send) : both->send.data(), mine,
                                both->receive.data(), is_root ? layout.counts.data() : nullptr,
                                is_root ? layout.displacements() : nullptr, c.type(), root, how());
  look("gather_v", c, code, both,
       [=, this] { return !is_root || holds_all(both->receive, c, layout); });
}

void Caller::scatter(const Case& c, int root) {
  const bool is_root = rank_ == root;
  const Layout layout = even(c.count, ranks());
  const Both both = make(c, is_root ? layout.extent : 0, c.count);
  const bool is_in_place = is_root && c.mode == BufferMode::kInPlace;
  void* const to = is_in_place ? const_cast<void*>(IVY_IN_PLACE) : both->receive.data();
  const int code =
      ivy_scatter(comm_, is_root ? both->send.data() : nullptr, to, c.count, c.type(), root, how());
  look("scatter", c, code, both, [=, this] {
    Buffer& result = is_in_place ? both->send : both->receive;
    return result.holds(input(root, c), c.element(), is_in_place ? layout.begin(rank_) : 0, c.count,
                        layout.before(rank_));
  });
}

void Caller::scatter_v(const Case& c, int root) {
  const bool is_root = rank_ == root;
  const Layout layout = uneven(c);
  const std::size_t mine = layout.count(rank_);
  const Both both = make_empty(c, is_root ? layout.extent : 0, mine);
  if (is_root) fill_blocks(both->send, own(c), c.element(), layout);
  const bool is_in_place = is_root && c.mode == BufferMode::kInPlace;
  void* const to = is_in_place ? const_cast<void*>(IVY_IN_PLACE) : both->receive.data();
  const int code =
      ivy_scatter_v(comm_, both->send.data(), is_root ? layout.counts.data() : nullptr,
                    is_root ? layout.displacements() : nullptr, to, mine, c.type(), root, how());
  look("scatter_v", c, code, both, [=, this] {
    Buffer& result = is_in_place ? both->send : both->receive;
    return result.holds(input(root, c), c.element(), is_in_place ? layout.begin(rank_) : 0, mine,
                        layout.before(rank_));
  });
}

void Caller::all_to_all(const Case& c, int) {
  const Layout layout = even(c.count, ranks());
  const Both both = make(c, layout.extent, layout.extent);
  Buffer& result = c.mode == BufferMode::kInPlace ? both->send : both->receive;
  const int code =
      ivy_all_to_all(comm_, given(c, both->send), result.data(), c.count, c.type(), how());
  look("all_to_all", c, code, both, [=, this, &result] {
    bool is_right = true;
    for (int from = 0; from < size_; ++from) {
      is_right &= result.holds(input(from, c), c.element(), layout.begin(from), c.count,
                               layout.begin(rank_));
    }
    return is_right;
  });
}

// Does not support in-place buffers.
void Caller::all_to_all_v(const Case& c, int) {
  const Layout gives = exchanged(c, true);
  const Layout gets = exchanged(c, false);
  const Both both = make_empty(c, gives.extent, gets.extent);
  fill_blocks(both->send, own(c), c.element(), gives);
  const int code = ivy_all_to_all_v(comm_, both->send.data(), gives.counts.data(),
                                    gives.displacements(), both->receive.data(), gets.counts.data(),
                                    gets.displacements(), c.type(), how());
  look("all_to_all_v", c, code, both, [=, this] {
    bool is_right = has_clean_gaps(both->receive, c.element(), gets);
    for (int from = 0; from < size_; ++from) {
      std::size_t sent_before = 0;
      for (int to = 0; to < rank_; ++to) {
        sent_before += c.count * static_cast<std::size_t>((from + 2 * to) % 3);
      }
      is_right &= both->receive.holds(input(from, c), c.element(), gets.begin(from),
                                      gets.count(from), sent_before);
    }
    return is_right;
  });
}

void Caller::scan(const Case& c, int) {
  const Both both = make(c, c.count, c.count);
  Buffer& result = c.mode == BufferMode::kInPlace ? both->send : both->receive;
  const int code =
      ivy_scan(comm_, given(c, both->send), result.data(), c.count, c.type(), c.reduction(), how());
  look("scan", c, code, both, [=, this, &result] {
    return result.holds(expected_.scanned(rank_, c.kind), c.element(), 0, c.count);
  });
}

void Caller::exscan(const Case& c, int) {
  const Both both = make(c, c.count, c.count);
  Buffer& result = c.mode == BufferMode::kInPlace ? both->send : both->receive;
  const int code = ivy_exscan(comm_, given(c, both->send), result.data(), c.count, c.type(),
                              c.reduction(), how());
  look("exscan", c, code, both, [=, this, &result] {
    return result.holds(expected_.scanned(rank_ - 1, c.kind), c.element(), 0, c.count);
  });
}

// Three parts, one of them empty.
void Caller::coalesced(const Case& c, int) {
  const std::size_t counts[] = {c.count, 0, c.count / 2 + 1};
  const bool is_in_place = c.mode == BufferMode::kInPlace;
  const std::size_t extent = counts[0] + counts[2];
  const Both both = make_empty(c, extent, extent);
  both->send.fill(own(c), c.element(), 0, counts[0]);
  both->send.fill(own(c), c.element(), counts[0], counts[2]);
  Buffer& result = is_in_place ? both->send : both->receive;
  const std::size_t second = counts[0] * c.element();
  const void* const send[] = {given(c, both->send), nullptr,
                              is_in_place ? IVY_IN_PLACE : both->send.data() + second};
  void* const receive[] = {result.data(), nullptr, result.data() + second};
  const int code =
      ivy_all_reduce_coalesced(comm_, 3, send, receive, counts, c.type(), c.reduction(), how());
  look("all_reduce_coalesced", c, code, both, [=, this, &result, most = counts[2]] {
    const Bytes& wanted = expected_.reduced(c.kind);
    return result.holds(wanted, c.element(), 0, c.count) &&
           result.holds(wanted, c.element(), c.count, most);
  });
}

void Caller::barrier() {
  if (ivy_barrier(comm_, nullptr) == IVY_OK) return;
  *is_ok_ = false;
  ADD_FAILURE() << "barrier: " << ivy_last_error();
}

std::span<const MatrixCall> matrix_calls() {
  static constexpr MatrixCall kCalls[] = {
      {"all_reduce", true, &Caller::all_reduce},
      {"reduce", true, &Caller::reduce},
      {"reduce_scatter", true, &Caller::reduce_scatter},
      {"reduce_scatter_v", true, &Caller::reduce_scatter_v},
      {"scan", true, &Caller::scan},
      {"exscan", true, &Caller::exscan},
      {"all_reduce_coalesced", true, &Caller::coalesced},
      {"broadcast", false, &Caller::broadcast},
      {"all_gather", false, &Caller::all_gather},
      {"all_gather_v", false, &Caller::all_gather_v},
      {"gather", false, &Caller::gather},
      {"gather_v", false, &Caller::gather_v},
      {"scatter", false, &Caller::scatter},
      {"scatter_v", false, &Caller::scatter_v},
      {"all_to_all", false, &Caller::all_to_all},
      {"all_to_all_v", false, &Caller::all_to_all_v},
  };
  return kCalls;
}

}  // namespace ivy::comm::test
