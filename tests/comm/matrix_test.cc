// Every collective, type and reduction, at every size where the way changes, on one host, between
// hosts and on uneven hosts, beside a serial reference. The results are the same bytes on all ranks
// and from run to run. One set of processes for each topology runs the whole list.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/reduce/reduce.h"
#include "comm/transports/shared_layout.h"
#include "comm/transports/tcp_streams.h"
#include "tests/comm/reduce_reference.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

// Data repeat with a prime period, so that the reference is short, and a piece that went to a wrong
// place shows: no size of a chunk is a multiple of it.
constexpr std::size_t kPeriod = 251;
constexpr std::uint8_t kCanary = 0xa5;
constexpr std::size_t kCanaryBytes = 64;

enum class Place : std::uint8_t { kOut, kInPlace, kUnaligned };
constexpr Place kPlaces[] = {Place::kOut, Place::kInPlace, Place::kUnaligned};

std::uint32_t mix(std::uint32_t value) {
  value = (value ^ value >> 16) * 0x7feb352dU;
  value = (value ^ value >> 15) * 0x846ca68bU;
  return value ^ value >> 16;
}

template <class T>
void put(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

// Small whole numbers (for products, powers of two), so that every order of combination gives the
// same and only the last rounding is seen.
float exact_number(ReduceOp op, std::uint32_t bits) {
  if (op == ReduceOp::kProduct) {
    const float values[] = {1, -1, 2, 0.5F};
    return values[bits % 4];
  }
  return static_cast<float>(static_cast<int>(bits % 15) - 7);
}

// Beside it in a complex number. For products all are real multiples of 2 + i, of which no power
// has a part that is zero: its sign would tell the order of combination.
float imaginary_number(ReduceOp op, std::uint32_t bits) {
  return op == ReduceOp::kProduct ? exact_number(op, bits) / 2 : exact_number(op, bits >> 8);
}

// One period of a rank's input.
Bytes input_of(int rank, Dtype dtype, ReduceOp op, std::uint32_t seed) {
  const std::size_t element = element_bytes(dtype);
  Bytes bytes(kPeriod * element);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const std::uint32_t bits = mix(
        static_cast<std::uint32_t>(i * 64 + static_cast<std::size_t>(rank)) + seed * 0x9e3779b9U);
    switch (dtype) {
      case Dtype::kF16:
      case Dtype::kBf16:
        put(bytes, i, static_cast<std::uint16_t>(encode_small(dtype, exact_number(op, bits))));
        break;
      case Dtype::kF8E4m3:
      case Dtype::kF8E5m2:
        put(bytes, i, static_cast<std::uint8_t>(encode_small(dtype, exact_number(op, bits))));
        break;
      case Dtype::kF32:
        put(bytes, i, exact_number(op, bits));
        break;
      case Dtype::kF64:
        put(bytes, i, static_cast<double>(exact_number(op, bits)));
        break;
      case Dtype::kC64:
        put(bytes, 2 * i, exact_number(op, bits));
        put(bytes, 2 * i + 1, imaginary_number(op, bits));
        break;
      case Dtype::kC128:
        put(bytes, 2 * i, static_cast<double>(exact_number(op, bits)));
        put(bytes, 2 * i + 1, static_cast<double>(imaginary_number(op, bits)));
        break;
      case Dtype::kBool:
        put(bytes, i, static_cast<std::uint8_t>(bits % 8 == 0 ? 2 : bits % 2));
        break;
      default:  // Integers: any bits.
        for (std::size_t byte = 0; byte < element; ++byte) {
          bytes[i * element + byte] =
              static_cast<std::uint8_t>(mix(bits + static_cast<std::uint32_t>(byte)));
        }
    }
  }
  return bytes;
}

double factor_of(int rank) { return rank % 2 == 0 ? 0.5 : -2.0; }

// One period of what the ranks `first` to `last` give together.
Bytes reduced(Dtype dtype, ReduceOp op, std::uint32_t seed, int first, int last) {
  std::vector<Bytes> inputs;
  std::vector<double> factors;
  for (int rank = first; rank <= last; ++rank) {
    inputs.push_back(input_of(rank, dtype, op, seed));
    factors.push_back(factor_of(rank));
  }
  Reduction reduction;
  reduction.dtype = dtype;
  reduction.op = op;
  reduction.divisor = static_cast<std::uint32_t>(inputs.size());
  if (op == ReduceOp::kPremulSum) reduction.factors = factors.data();
  return reference_reduce(reduction, inputs, kPeriod);
}

// Which of this rank's buffers are registered.
enum class Registered : std::uint8_t { kNone, kAll, kEverySecond };
Registered registered = Registered::kNone;
ivy_comm* registering = nullptr;

// Plain memory or registered, filled with canaries.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    static unsigned made = 0;
    const bool is_registered = registered == Registered::kAll ||
                               (registered == Registered::kEverySecond && ++made % 2 == 0);
    if (is_registered) {
      void* memory = nullptr;
      EXPECT_EQ(ivy_mem_alloc(registering, bytes, &memory), IVY_OK) << ivy_last_error();
      registered_ = static_cast<std::uint8_t*>(memory);
    } else {
      plain_.resize(bytes);
    }
    std::fill(begin(), end(), kCanary);
  }
  ~Memory() { EXPECT_EQ(ivy_mem_free(registered_), IVY_OK) << ivy_last_error(); }
  Memory(Memory&& other) noexcept
      : bytes_(other.bytes_),
        registered_(std::exchange(other.registered_, nullptr)),
        plain_(std::move(other.plain_)) {}
  Memory& operator=(Memory&&) = delete;

  std::uint8_t* data() { return registered_ != nullptr ? registered_ : plain_.data(); }
  const std::uint8_t* data() const { return const_cast<Memory*>(this)->data(); }
  std::uint8_t* begin() { return data(); }
  std::uint8_t* end() { return data() + bytes_; }
  const std::uint8_t* begin() const { return data(); }
  const std::uint8_t* end() const { return data() + bytes_; }

 private:
  const std::size_t bytes_;
  std::uint8_t* registered_ = nullptr;
  Bytes plain_;
};

// A user's buffer with guards on both sides.
class Buffer {
 public:
  Buffer(std::size_t bytes, Place place)
      : bytes_(bytes),
        skip_(kCanaryBytes + (place == Place::kUnaligned ? 1 : 0)),
        memory_(bytes + 2 * kCanaryBytes + 1) {}

  std::uint8_t* data() { return memory_.data() + skip_; }
  // `count` elements from `at` on (both in elements), of a periodic sequence's element `from` on.
  void fill(const Bytes& period, std::size_t element, std::size_t at, std::size_t count,
            std::size_t from = 0) {
    for_pieces(period, element, count, from,
               [&](std::size_t begin, const std::uint8_t* piece, std::size_t bytes) {
                 std::memcpy(data() + at * element + begin, piece, bytes);
               });
  }
  bool holds(const Bytes& period, std::size_t element, std::size_t at, std::size_t count,
             std::size_t from = 0) {
    bool is_equal = true;
    for_pieces(period, element, count, from,
               [&](std::size_t begin, const std::uint8_t* piece, std::size_t bytes) {
                 is_equal &= std::memcmp(data() + at * element + begin, piece, bytes) == 0;
               });
    return is_equal;
  }
  bool is_guarded() const {
    const auto is_canary = [](std::uint8_t byte) { return byte == kCanary; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(skip_),
                       is_canary) &&
           std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(skip_ + bytes_), memory_.end(),
                       is_canary);
  }

 private:
  template <class Visit>
  static void for_pieces(const Bytes& period, std::size_t element, std::size_t count,
                         std::size_t from, Visit visit) {
    for (std::size_t done = 0; done < count;) {
      const std::size_t start = (from + done) % kPeriod;
      const std::size_t piece = std::min(kPeriod - start, count - done);
      visit(done * element, period.data() + start * element, piece * element);
      done += piece;
    }
  }

  std::size_t bytes_;
  std::size_t skip_;
  Memory memory_;
};

struct Case {
  Dtype dtype;
  ReduceOp op;
  std::size_t count;
  Place place;
  std::uint32_t seed;

  std::size_t element() const { return element_bytes(dtype); }
  int type() const { return static_cast<int>(dtype); }
  int reduction() const { return static_cast<int>(op); }
};

// The collectives as one rank calls them, each checked at once.
class Caller {
 public:
  Caller(ivy_comm* comm, bool* is_well)
      : comm_(comm), rank_(ivy_comm_rank(comm)), size_(ivy_comm_size(comm)), is_well_(is_well) {
    call_.struct_bytes = sizeof call_;
    call_.factor = factor_of(rank_);
  }

  void all_reduce(const Case& c) {
    Buffer send = filled(c, 1);
    Buffer receive(c.count * c.element(), c.place);
    Buffer& result = c.place == Place::kInPlace ? send : receive;
    const int code = ivy_all_reduce(comm_, given(c, send), result.data(), c.count, c.type(),
                                    c.reduction(), &call_);
    expect("all_reduce", c, code,
           result.holds(reduced(c.dtype, c.op, c.seed, 0, size_ - 1), c.element(), 0, c.count),
           send, receive);
  }

  void reduce(const Case& c, int root) {
    Buffer send = filled(c, 1);
    Buffer receive(c.count * c.element(), c.place);
    const bool is_root = rank_ == root;
    Buffer& result = c.place == Place::kInPlace ? send : receive;
    const int code = ivy_reduce(comm_, given(c, send),
                                is_root || c.place == Place::kInPlace ? result.data() : nullptr,
                                c.count, c.type(), c.reduction(), root, &call_);
    const Bytes& wanted = is_root ? reduced(c.dtype, c.op, c.seed, 0, size_ - 1)
                                  : input_of(rank_, c.dtype, c.op, c.seed);
    Buffer& looked_at = is_root ? result : send;
    expect("reduce", c, code, looked_at.holds(wanted, c.element(), 0, c.count), send, receive);
  }

  void broadcast(const Case& c, int root) {
    Buffer buffer = filled(c, 1);
    const int code = ivy_broadcast(comm_, buffer.data(), c.count, c.type(), root, &call_);
    expect("broadcast", c, code,
           buffer.holds(input_of(root, c.dtype, c.op, c.seed), c.element(), 0, c.count), buffer,
           buffer);
  }

  void all_gather(const Case& c) {
    Buffer send = filled(c, 1);
    Buffer receive(c.count * c.element() * ranks(), c.place);
    receive.fill(own(c), c.element(), static_cast<std::size_t>(rank_) * c.count, c.count);
    const int code =
        ivy_all_gather(comm_, given(c, send), receive.data(), c.count, c.type(), &call_);
    expect("all_gather", c, code, holds_all(receive, c, std::vector(ranks(), c.count)), send,
           receive);
  }

  void all_gather_v(const Case& c) {
    const std::vector<std::size_t> counts = uneven(c.count);
    const std::size_t mine = counts[static_cast<std::size_t>(rank_)];
    Buffer send(mine * c.element(), c.place);
    send.fill(own(c), c.element(), 0, mine);
    Buffer receive(total(counts) * c.element(), c.place);
    receive.fill(own(c), c.element(), begin_of(counts, rank_), mine);
    const int code = ivy_all_gather_v(comm_, given(c, send), receive.data(), counts.data(), nullptr,
                                      c.type(), &call_);
    expect("all_gather_v", c, code, holds_all(receive, c, counts), send, receive);
  }

  void reduce_scatter(const Case& c) {
    Buffer send = filled(c, ranks());
    Buffer receive(c.count * c.element(), c.place);
    Buffer& result = c.place == Place::kInPlace ? send : receive;
    const int code = ivy_reduce_scatter(comm_, given(c, send), result.data(), c.count, c.type(),
                                        c.reduction(), &call_);
    expect("reduce_scatter", c, code,
           result.holds(reduced(c.dtype, c.op, c.seed, 0, size_ - 1), c.element(), 0, c.count,
                        static_cast<std::size_t>(rank_) * c.count),
           send, receive);
  }

  void reduce_scatter_v(const Case& c) {
    const std::vector<std::size_t> counts = uneven(c.count);
    const std::size_t mine = counts[static_cast<std::size_t>(rank_)];
    Buffer send(total(counts) * c.element(), c.place);
    send.fill(own(c), c.element(), 0, total(counts));
    Buffer receive(mine * c.element(), c.place);
    Buffer& result = c.place == Place::kInPlace ? send : receive;
    const int code = ivy_reduce_scatter_v(comm_, given(c, send), result.data(), counts.data(),
                                          c.type(), c.reduction(), &call_);
    expect("reduce_scatter_v", c, code,
           result.holds(reduced(c.dtype, c.op, c.seed, 0, size_ - 1), c.element(), 0, mine,
                        begin_of(counts, rank_)),
           send, receive);
  }

  void gather(const Case& c, int root) {
    const bool is_root = rank_ == root;
    Buffer send = filled(c, 1);
    Buffer receive(is_root ? c.count * c.element() * ranks() : 0, c.place);
    if (is_root)
      receive.fill(own(c), c.element(), static_cast<std::size_t>(rank_) * c.count, c.count);
    const int code =
        ivy_gather(comm_, is_root ? given(c, send) : send.data(),
                   is_root ? receive.data() : nullptr, c.count, c.type(), root, &call_);
    expect("gather", c, code, !is_root || holds_all(receive, c, std::vector(ranks(), c.count)),
           send, receive);
  }

  void gather_v(const Case& c, int root) {
    const std::vector<std::size_t> counts = uneven(c.count);
    const std::size_t mine = counts[static_cast<std::size_t>(rank_)];
    const bool is_root = rank_ == root;
    Buffer send(mine * c.element(), c.place);
    send.fill(own(c), c.element(), 0, mine);
    Buffer receive(is_root ? total(counts) * c.element() : 0, c.place);
    if (is_root) receive.fill(own(c), c.element(), begin_of(counts, rank_), mine);
    const int code =
        ivy_gather_v(comm_, is_root ? given(c, send) : send.data(), mine, receive.data(),
                     is_root ? counts.data() : nullptr, nullptr, c.type(), root, &call_);
    expect("gather_v", c, code, !is_root || holds_all(receive, c, counts), send, receive);
  }

  void scatter(const Case& c, int root) {
    const bool is_root = rank_ == root;
    const std::size_t from = static_cast<std::size_t>(rank_) * c.count;
    Buffer send(is_root ? c.count * c.element() * ranks() : 0, c.place);
    if (is_root) send.fill(own(c), c.element(), 0, c.count * ranks());
    Buffer receive(c.count * c.element(), c.place);
    const bool is_in_place = is_root && c.place == Place::kInPlace;
    const int code = ivy_scatter(comm_, is_root ? send.data() : nullptr,
                                 is_in_place ? const_cast<void*>(IVY_IN_PLACE) : receive.data(),
                                 c.count, c.type(), root, &call_);
    Buffer& result = is_in_place ? send : receive;
    expect("scatter", c, code,
           result.holds(input_of(root, c.dtype, c.op, c.seed), c.element(), is_in_place ? from : 0,
                        c.count, from),
           send, receive);
  }

  void scatter_v(const Case& c, int root) {
    const std::vector<std::size_t> counts = uneven(c.count);
    const std::size_t mine = counts[static_cast<std::size_t>(rank_)];
    const bool is_root = rank_ == root;
    Buffer send(is_root ? total(counts) * c.element() : 0, c.place);
    if (is_root) send.fill(own(c), c.element(), 0, total(counts));
    Buffer receive(mine * c.element(), c.place);
    const int code = ivy_scatter_v(comm_, send.data(), is_root ? counts.data() : nullptr, nullptr,
                                   receive.data(), mine, c.type(), root, &call_);
    expect("scatter_v", c, code,
           receive.holds(input_of(root, c.dtype, c.op, c.seed), c.element(), 0, mine,
                         begin_of(counts, rank_)),
           send, receive);
  }

  void all_to_all(const Case& c) {
    Buffer send = filled(c, ranks());
    Buffer receive(c.count * c.element() * ranks(), c.place);
    Buffer& result = c.place == Place::kInPlace ? send : receive;
    const int code =
        ivy_all_to_all(comm_, given(c, send), result.data(), c.count, c.type(), &call_);
    bool is_right = true;
    for (int from = 0; from < size_; ++from) {
      is_right &= result.holds(input_of(from, c.dtype, c.op, c.seed), c.element(),
                               static_cast<std::size_t>(from) * c.count, c.count,
                               static_cast<std::size_t>(rank_) * c.count);
    }
    expect("all_to_all", c, code, is_right, send, receive);
  }

  // Rank a gives rank b (a + 2b) % 3 of `count` elements, so that some give nothing.
  void all_to_all_v(const Case& c) {
    if (c.place == Place::kInPlace) return;
    std::vector<std::size_t> gives;
    std::vector<std::size_t> gets;
    for (int other = 0; other < size_; ++other) {
      gives.push_back(exchanged(c, rank_, other));
      gets.push_back(exchanged(c, other, rank_));
    }
    std::vector<std::size_t> gives_at;
    std::vector<std::size_t> gets_at;
    for (int other = 0; other < size_; ++other) {
      gives_at.push_back(begin_of(gives, other));
      gets_at.push_back(begin_of(gets, other));
    }
    Buffer send(total(gives) * c.element(), c.place);
    send.fill(own(c), c.element(), 0, total(gives));
    Buffer receive(total(gets) * c.element(), c.place);
    const int code =
        ivy_all_to_all_v(comm_, send.data(), gives.data(), gives_at.data(), receive.data(),
                         gets.data(), gets_at.data(), c.type(), &call_);
    bool is_right = true;
    for (int from = 0; from < size_; ++from) {
      std::size_t sent_from = 0;
      for (int to = 0; to < rank_; ++to) sent_from += exchanged(c, from, to);
      is_right &= receive.holds(input_of(from, c.dtype, c.op, c.seed), c.element(),
                                gets_at[static_cast<std::size_t>(from)],
                                gets[static_cast<std::size_t>(from)], sent_from);
    }
    expect("all_to_all_v", c, code, is_right, send, receive);
  }

  void scan(const Case& c) {
    Buffer send = filled(c, 1);
    Buffer receive(c.count * c.element(), c.place);
    Buffer& result = c.place == Place::kInPlace ? send : receive;
    const int code =
        ivy_scan(comm_, given(c, send), result.data(), c.count, c.type(), c.reduction(), &call_);
    expect("scan", c, code,
           result.holds(reduced(c.dtype, c.op, c.seed, 0, rank_), c.element(), 0, c.count), send,
           receive);
  }

  void coalesced(const Case& c) {
    const std::size_t counts[] = {c.count, 0, c.count / 2 + 1};
    Buffer first = filled(c, 1);
    Buffer last(counts[2] * c.element(), c.place);
    last.fill(own(c), c.element(), 0, counts[2]);
    const void* const send[] = {first.data(), nullptr, last.data()};
    void* const receive[] = {first.data(), nullptr, last.data()};
    const int code =
        ivy_all_reduce_coalesced(comm_, 3, send, receive, counts, c.type(), c.reduction(), &call_);
    const Bytes wanted = reduced(c.dtype, c.op, c.seed, 0, size_ - 1);
    expect("all_reduce_coalesced", c, code,
           first.holds(wanted, c.element(), 0, counts[0]) &&
               last.holds(wanted, c.element(), 0, counts[2]),
           first, last);
  }

  void barrier() {
    if (ivy_barrier(comm_, nullptr) == IVY_OK) return;
    *is_well_ = false;
    ADD_FAILURE() << "barrier: " << ivy_last_error();
  }

  bool is_well() const { return *is_well_; }
  int size() const { return size_; }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  Bytes own(const Case& c) const { return input_of(rank_, c.dtype, c.op, c.seed); }
  Buffer filled(const Case& c, std::size_t blocks) const {
    Buffer buffer(c.count * blocks * c.element(), c.place);
    buffer.fill(own(c), c.element(), 0, c.count * blocks);
    return buffer;
  }
  static const void* given(const Case& c, Buffer& send) {
    return c.place == Place::kInPlace ? IVY_IN_PLACE : send.data();
  }
  // Rank r has count / (r % 3 + 1), and every fifth rank nothing.
  std::vector<std::size_t> uneven(std::size_t count) const {
    std::vector<std::size_t> counts;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      counts.push_back(rank % 5 == 4 ? 0 : count / (rank % 3 + 1));
    }
    return counts;
  }
  static std::size_t exchanged(const Case& c, int from, int to) {
    return c.count * static_cast<std::size_t>((from + 2 * to) % 3);
  }
  static std::size_t begin_of(const std::vector<std::size_t>& counts, int rank) {
    std::size_t begin = 0;
    for (int other = 0; other < rank; ++other) begin += counts[static_cast<std::size_t>(other)];
    return begin;
  }
  static std::size_t total(const std::vector<std::size_t>& counts) {
    return begin_of(counts, static_cast<int>(counts.size()));
  }
  bool holds_all(Buffer& buffer, const Case& c, const std::vector<std::size_t>& counts) const {
    for (int from = 0; from < size_; ++from) {
      if (!buffer.holds(input_of(from, c.dtype, c.op, c.seed), c.element(), begin_of(counts, from),
                        counts[static_cast<std::size_t>(from)])) {
        return false;
      }
    }
    return true;
  }
  void expect(const char* operation, const Case& c, int code, bool is_right, const Buffer& first,
              const Buffer& second) {
    if (code == IVY_OK && is_right && first.is_guarded() && second.is_guarded()) return;
    if (code != IVY_OK) *is_well_ = false;
    ADD_FAILURE() << operation << " " << reduce_op_name(c.op) << " of " << c.count << " "
                  << dtype_name(c.dtype) << " place " << static_cast<int>(c.place) << ": code "
                  << code << (code != IVY_OK ? ivy_last_error() : "")
                  << (is_right ? "" : " wrong data")
                  << (first.is_guarded() && second.is_guarded() ? "" : " wrote beside the buffer");
  }

  ivy_comm* const comm_;
  const int rank_;
  const int size_;
  bool* const is_well_;
  ivy_call call_ = {};
};

// Every type and every reduction that has a meaning for it.
void run_types(Caller& caller, std::uint32_t& seed) {
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      const auto type = static_cast<Dtype>(dtype);
      const auto reduction = static_cast<ReduceOp>(op);
      if (!is_reducible(type, reduction)) continue;
      for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1031}}) {
        const Case c = {type, reduction, count, kPlaces[++seed % 3], seed};
        caller.all_reduce(c);
        if (count == 7) caller.scan(c);
        if (count == 1031) caller.reduce_scatter(c);
        if (count == 1031) caller.reduce(c, static_cast<int>(seed) % caller.size());
        if (!caller.is_well()) return;
      }
    }
  }
}

void run_operations(Caller& caller, const Case& c) {
  const int root = static_cast<int>(c.seed) % caller.size();
  caller.all_reduce(c);
  caller.reduce(c, root);
  caller.broadcast(c, root);
  caller.all_gather(c);
  caller.all_gather_v(c);
  caller.reduce_scatter(c);
  caller.reduce_scatter_v(c);
  caller.gather(c, root);
  caller.gather_v(c, root);
  caller.scatter(c, root);
  caller.scatter_v(c, root);
  caller.all_to_all(c);
  caller.all_to_all_v(c);
  caller.scan(c);
  caller.coalesced(c);
  caller.barrier();
}

// Around every size at which the way changes, in bytes.
std::vector<std::size_t> sizes_in_bytes(int ranks) {
  std::vector<std::size_t> sizes = {0, 8, kInlineBytes, kInlineBytes + 8, 1031 * 8};
  for (const std::size_t edge : {kEagerBytes, kSlotBytes}) {
    for (const std::size_t size : {edge - 8, edge, edge + 8}) sizes.push_back(size);
  }
  if (ranks <= 5) sizes.push_back(kSlots * kSlotBytes * 2 + 24);
  return sizes;
}

// Partials of f16 and of averages are wider than their elements.
constexpr struct {
  Dtype dtype;
  ReduceOp op;
} kSized[] = {{Dtype::kF32, ReduceOp::kSum},   {Dtype::kI64, ReduceOp::kMax},
              {Dtype::kU8, ReduceOp::kAvg},    {Dtype::kF16, ReduceOp::kSum},
              {Dtype::kI64, ReduceOp::kAvg},   {Dtype::kF32, ReduceOp::kPremulSum},
              {Dtype::kF8E5m2, ReduceOp::kSum}};

void run_sizes(Caller& caller, std::uint32_t& seed) {
  for (const std::size_t bytes : sizes_in_bytes(caller.size())) {
    for (const Place place : kPlaces) {
      const auto& kind = kSized[++seed % std::size(kSized)];
      run_operations(caller, {kind.dtype, kind.op, bytes / element_bytes(kind.dtype), place, seed});
      if (!caller.is_well()) return;
    }
  }
  for (const auto& kind : kSized) {
    for (const std::size_t bytes : {std::size_t{9000}, kEagerBytes + 8, std::size_t{300'000}}) {
      const Case c = {kind.dtype, kind.op, bytes / element_bytes(kind.dtype), Place::kOut, ++seed};
      caller.all_reduce(c);
      caller.reduce(c, static_cast<int>(seed) % caller.size());
      caller.scan(c);
      if (!caller.is_well()) return;
    }
  }
}

// Sums that do round: the same bytes on all ranks and in a second run, and near the true sum.
void expect_reproducible(ivy_comm* comm, std::size_t count) {
  const int rank = ivy_comm_rank(comm);
  const int size = ivy_comm_size(comm);
  const auto value = [](int of, std::size_t i) {
    return static_cast<float>(
               mix(static_cast<std::uint32_t>(i) * 31 + static_cast<std::uint32_t>(of))) *
           1e-9F;
  };
  std::vector<float> send(count);
  for (std::size_t i = 0; i < count; ++i) send[i] = value(rank, i);
  std::vector<float> first(count);
  std::vector<float> second(count);
  ASSERT_EQ(ivy_all_reduce(comm, send.data(), first.data(), count, IVY_F32, IVY_SUM, nullptr), 0)
      << ivy_last_error();
  ASSERT_EQ(ivy_all_reduce(comm, send.data(), second.data(), count, IVY_F32, IVY_SUM, nullptr), 0);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), count * sizeof(float)), 0);
  std::vector<float> theirs = first;
  ASSERT_EQ(ivy_broadcast(comm, theirs.data(), count, IVY_F32, 0, nullptr), 0);
  EXPECT_EQ(std::memcmp(first.data(), theirs.data(), count * sizeof(float)), 0);
  for (std::size_t i = 0; i < count; i += 97) {
    double sum = 0;
    for (int of = 0; of < size; ++of) sum += static_cast<double>(value(of, i));
    ASSERT_NEAR(static_cast<double>(first[i]), sum, sum * 1e-5) << i;
  }
}

class MatrixTest : public ::testing::TestWithParam<Hosts> {};

TEST_P(MatrixTest, EqualsTheReference) {
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int) {
    const World world;
    ASSERT_TRUE(world);
    bool is_well = true;
    Caller caller(world, &is_well);
    std::uint32_t seed = 0;
    run_sizes(caller, seed);
    if (is_well) run_types(caller, seed);
    if (is_well) expect_reproducible(world, 3);
    if (is_well) expect_reproducible(world, 3001);
    if (is_well) expect_reproducible(world, 70'001);
    if (is_well) caller.barrier();
  });
  expect_well(ends);
}

// What one rank registers is its own affair: whoever has registered what, the results are the same.
TEST_P(MatrixTest, EqualsTheReferenceWithRegisteredBuffers) {
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    bool is_well = true;
    Caller caller(world, &is_well);
    registering = world;
    std::uint32_t seed = 77;
    // Every buffer is made and mapped anew, by every pair of ranks.
    const bool is_small = caller.size() <= 4;
    for (const int mode : {0, 1, 2}) {
      registered = mode == 0       ? Registered::kAll
                   : mode == 1     ? Registered::kEverySecond
                   : rank % 2 == 0 ? Registered::kAll
                                   : Registered::kNone;
      for (const std::size_t bytes :
           {kInlineBytes, kEagerBytes + 8, kSlotBytes + 8, kSlots * kSlotBytes + 24}) {
        if (!is_small && bytes != kEagerBytes + 8) continue;
        for (const Place place : kPlaces) {
          const auto& kind = kSized[++seed % std::size(kSized)];
          run_operations(caller,
                         {kind.dtype, kind.op, bytes / element_bytes(kind.dtype), place, seed});
          if (!is_well) return;
        }
      }
    }
    registered = Registered::kNone;
    caller.barrier();
  });
  expect_well(ends);
}

class StreamsMatrixTest : public MatrixTest {};

// Whoever dials says how many streams a connection has: ranks need not agree. Lengths around those
// from which on a message is divided among them.
TEST_P(StreamsMatrixTest, EqualsTheReferenceOverSeveralStreams) {
  const std::vector<RankEnd> ends = run_world(GetParam(), [&](int rank) {
    setenv("IVY_TCP_STREAMS", std::to_string(rank % 2 == 0 ? 3 : 2 + rank).c_str(), 1);
    const World world;
    ASSERT_TRUE(world);
    bool is_well = true;
    Caller caller(world, &is_well);
    std::uint32_t seed = 33;
    const bool is_small = caller.size() <= 4;
    for (const std::size_t bytes :
         {std::size_t{64}, 2 * kStripeLeast - 8, 2 * kStripeLeast, 3 * kStripeLeast + 24,
          std::size_t{64}, 16 * kStripeLeast + 1000}) {
      if (!is_small && bytes > 3 * kStripeLeast) continue;
      for (const Place place : kPlaces) {
        const auto& kind = kSized[++seed % std::size(kSized)];
        run_operations(caller,
                       {kind.dtype, kind.op, bytes / element_bytes(kind.dtype), place, seed});
        if (!is_well) return;
      }
    }
    expect_reproducible(world, 500'009);
    caller.barrier();
  });
  expect_well(ends);
}

// Registered, and larger than caches: results go past them.
void expect_large_sums(ivy_comm* world) {
  const std::size_t count = (std::size_t{64} << 20) / sizeof(std::uint32_t) + 1'000'003;
  const auto rank = static_cast<std::uint32_t>(ivy_comm_rank(world));
  const auto size = static_cast<std::uint32_t>(ivy_comm_size(world));
  void* memory[2] = {};
  for (void*& one : memory) {
    ASSERT_EQ(ivy_mem_alloc(world, count * sizeof(std::uint32_t), &one), IVY_OK)
        << ivy_last_error();
  }
  auto* const send = static_cast<std::uint32_t*>(memory[0]);
  auto* const receive = static_cast<std::uint32_t*>(memory[1]);
  for (std::uint32_t i = 0; i < count; ++i) send[i] = mix(i) + rank;
  const std::uint32_t ranks = size * (size - 1) / 2;
  const auto wrong = [&](const std::uint32_t* result) {
    std::uint32_t i = 0;
    while (i < count && result[i] == size * mix(i) + ranks) ++i;
    return i;
  };
  // The second time slots are full of the first one's results.
  for (const void* const from : {static_cast<const void*>(send), IVY_IN_PLACE}) {
    std::uint32_t* const to = from == send ? receive : send;
    ASSERT_EQ(ivy_all_reduce(world, from, to, count, IVY_U32, IVY_SUM, nullptr), IVY_OK)
        << ivy_last_error();
    ASSERT_EQ(wrong(to), count);
  }
  for (void* const one : memory) EXPECT_EQ(ivy_mem_free(one), IVY_OK) << ivy_last_error();
}

TEST(LargeAllReduceTest, RegisteredResultsPastTheCaches) {
  for (const int ranks : {2, 3}) {
    expect_well(run_world(one_host(ranks), [](int) {
      const World world;
      ASSERT_TRUE(world);
      expect_large_sums(world);
    }));
  }
}

std::string name_of_world(const ::testing::TestParamInfo<Hosts>& world) {
  return hosts_text(world.param);
}

INSTANTIATE_TEST_SUITE_P(Worlds, MatrixTest,
                         ::testing::Values(one_host(1), one_host(2), one_host(3), one_host(4),
                                           one_host(5), one_host(7), one_host(8), one_host(16),
                                           host_each(2), host_each(3), host_each(4), host_each(5),
                                           host_each(8), Hosts{2, 2}, Hosts{3, 2, 1}, Hosts{1, 3},
                                           Hosts{4, 4}, Hosts{1, 2, 5, 8}),
                         name_of_world);

INSTANTIATE_TEST_SUITE_P(Worlds, StreamsMatrixTest,
                         ::testing::Values(host_each(2), host_each(3), host_each(5), Hosts{2, 2},
                                           Hosts{1, 3}, Hosts{3, 2, 1}),
                         name_of_world);

}  // namespace
}  // namespace ivy::comm::test
