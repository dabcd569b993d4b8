// libivycomm for C++20: ivycomm.h with destructors, exceptions and element types taken from the
// compiler. Header only; link libivycomm (CMake: ivy::comm, pkg-config: ivycomm).
//
//   ivycomm::World world;                            // A world of one without a launcher.
//   world.all_reduce(x);                             // In place; x is a std::vector<float>, say.
//   world.start_all_reduce(x).wait();                // Until then x belongs to the library.
//
// What every operation means, who calls it when, and threads: ivycomm.h. Failures are exceptions of
// type Error. Counts are elements, and buffers are anything that std::span can be made of.
#pragma once

#include <ivycomm.h>

#include <chrono>
#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ivycomm {

// A failed call: its code, its text (what), and who is to blame.
class Error : public std::runtime_error {
 public:
  explicit Error(int code) : std::runtime_error(ivy_last_error()), code_(code) {
    failure_.struct_bytes = sizeof failure_;
    ivy_last_failure(&failure_);
  }
  int code() const { return code_; }
  const ivy_failure& failure() const { return failure_; }

 private:
  int code_;
  ivy_failure failure_{};
};

inline void check(int code) {
  if (code != IVY_OK) throw Error(code);
}

template <class T>
constexpr int dtype_number() {
  if constexpr (std::is_same_v<T, bool>) return IVY_BOOL;
  if constexpr (std::is_same_v<T, float>) return IVY_F32;
  if constexpr (std::is_same_v<T, double>) return IVY_F64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return IVY_C64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return IVY_C128;
  if constexpr (!std::is_integral_v<T>) return -1;
  constexpr int kPlace = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return IVY_I8 + 2 * kPlace + (std::is_unsigned_v<T> ? 1 : 0);
}
// The element type of T. Half and eighth types have none in C++20: specialise this for your own.
template <class T>
inline constexpr int kDtype = dtype_number<T>();

// An operation under way. Its destructor waits for it.
class Work {
 public:
  explicit Work(ivy_work* work) : work_(work) {}
  // False: still running after this time.
  bool wait(std::chrono::milliseconds at_most) {
    const int code = ivy_work_wait(work_.get(), at_most.count());
    if (code == IVY_DEADLINE_EXCEEDED) return test();  // Of this wait, or the operation's own.
    check(code);
    return true;
  }
  void wait() { check(ivy_work_wait(work_.get(), IVY_FOREVER)); }
  // Throws what the operation failed with.
  bool test() {
    int done = 0;
    check(ivy_work_test(work_.get(), &done));
    return done != 0;
  }
  void abort() { check(ivy_work_abort(work_.get())); }

 private:
  struct Free {
    void operator()(ivy_work* work) const { ivy_work_free(work); }
  };
  std::unique_ptr<ivy_work, Free> work_;
};

// A seat in a group of ranks. Does not own it: World and Group do.
class Communicator {
 public:
  explicit Communicator(ivy_comm* comm) : comm_(comm) {}

  ivy_comm* handle() const { return comm_; }
  int rank() const { return ivy_comm_rank(comm_); }
  int size() const { return ivy_comm_size(comm_); }
  int local_rank() const { return ivy_comm_local_rank(comm_); }
  int local_size() const { return ivy_comm_local_size(comm_); }
  int node_rank() const { return ivy_comm_node_rank(comm_); }
  int node_count() const { return ivy_comm_node_count(comm_); }
  std::string_view name() const { return ivy_comm_name(comm_); }
  // Who said which rank this is: "torchrun (RANK=1, WORLD_SIZE=4)".
  std::string_view source() const { return ivy_comm_source(comm_); }
  void abort(const std::string& reason) { check(ivy_comm_abort(comm_, reason.c_str())); }

  // Spans may be over a device's memory, on the default stream.
  void prepare_device(int device = -1) { check(ivy_prepare_device(comm_, device, nullptr)); }
  void barrier() { check(ivy_barrier(comm_, nullptr)); }

  // In place.
  template <class Buffer>
  void all_reduce(Buffer&& buffer, ivy_op op = IVY_SUM) {
    const std::span data(buffer);
    check(ivy_all_reduce(comm_, IVY_IN_PLACE, data.data(), data.size(), type(data), op, nullptr));
  }
  template <class Send, class Recv>
  void all_reduce(const Send& send, Recv&& recv, ivy_op op = IVY_SUM) {
    with(send, recv, [&](auto from, auto to) {
      same(from.size(), to.size());
      return ivy_all_reduce(comm_, from.data(), to.data(), to.size(), type(to), op, nullptr);
    });
  }
  // The buffer belongs to the library until the Work is done.
  template <class Buffer>
  [[nodiscard]] Work start_all_reduce(Buffer& buffer, ivy_op op = IVY_SUM) {
    const std::span data(buffer);
    ivy_work* work = nullptr;
    const ivy_call call{sizeof call, 0, &work, 0.0};
    check(ivy_all_reduce(comm_, IVY_IN_PLACE, data.data(), data.size(), type(data), op, &call));
    return Work(work);
  }
  // In place at the root.
  template <class Buffer>
  void reduce(Buffer&& buffer, int root, ivy_op op = IVY_SUM) {
    const std::span data(buffer);
    const bool is_root = rank() == root;
    check(ivy_reduce(comm_, is_root ? IVY_IN_PLACE : data.data(), is_root ? data.data() : nullptr,
                     data.size(), type(data), op, root, nullptr));
  }
  template <class Buffer>
  void broadcast(Buffer&& buffer, int root) {
    const std::span data(buffer);
    check(ivy_broadcast(comm_, data.data(), data.size(), type(data), root, nullptr));
  }
  template <class Buffer>
  void scan(Buffer&& buffer, ivy_op op = IVY_SUM) {
    const std::span data(buffer);
    check(ivy_scan(comm_, IVY_IN_PLACE, data.data(), data.size(), type(data), op, nullptr));
  }
  // recv holds size() times as many elements as send.
  template <class Send, class Recv>
  void all_gather(const Send& send, Recv&& recv) {
    with(send, recv, [&](auto from, auto to) {
      same(from.size() * ranks(), to.size());
      return ivy_all_gather(comm_, from.data(), to.data(), from.size(), type(to), nullptr);
    });
  }
  // send holds size() times as many elements as recv.
  template <class Send, class Recv>
  void reduce_scatter(const Send& send, Recv&& recv, ivy_op op = IVY_SUM) {
    with(send, recv, [&](auto from, auto to) {
      same(to.size() * ranks(), from.size());
      return ivy_reduce_scatter(comm_, from.data(), to.data(), to.size(), type(to), op, nullptr);
    });
  }
  // recv matters at the root only.
  template <class Send, class Recv>
  void gather(const Send& send, Recv&& recv, int root) {
    with(send, recv, [&](auto from, auto to) {
      if (rank() == root) same(from.size() * ranks(), to.size());
      return ivy_gather(comm_, from.data(), to.data(), from.size(), type(to), root, nullptr);
    });
  }
  // send matters at the root only.
  template <class Send, class Recv>
  void scatter(const Send& send, Recv&& recv, int root) {
    with(send, recv, [&](auto from, auto to) {
      if (rank() == root) same(to.size() * ranks(), from.size());
      return ivy_scatter(comm_, from.data(), to.data(), to.size(), type(to), root, nullptr);
    });
  }
  template <class Send, class Recv>
  void all_to_all(const Send& send, Recv&& recv) {
    with(send, recv, [&](auto from, auto to) {
      same(from.size(), to.size());
      return ivy_all_to_all(comm_, from.data(), to.data(), to.size() / ranks(), type(to), nullptr);
    });
  }

 protected:
  template <class T, std::size_t Extent>
  static constexpr int type(const std::span<T, Extent>&) {
    static_assert(!std::is_const_v<T>, "the buffer is written into");
    static_assert(kDtype<T> >= 0, "libivycomm has no such element type; specialise kDtype");
    return kDtype<T>;
  }
  template <class Send, class Recv, class Body>
  static void with(const Send& send, Recv&& recv, Body body) {
    const std::span from(send);
    const std::span to(recv);
    static_assert(std::is_same_v<std::remove_const_t<typename decltype(from)::element_type>,
                                 typename decltype(to)::element_type>);
    check(body(from, to));
  }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  static void same(std::size_t have, std::size_t want) {
    if (have != want) throw std::invalid_argument("ivycomm: a buffer of the wrong length");
  }

  ivy_comm* comm_;
};

// Some ranks of a communicator; ends with its owner, before the World.
class Group : public Communicator {
 public:
  explicit Group(ivy_comm* comm) : Communicator(comm) {}
  Group(Group&& other) noexcept : Communicator(std::exchange(other.comm_, nullptr)) {}
  Group& operator=(Group&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~Group() {
    if (comm_ != nullptr) ivy_comm_free(comm_);
  }
};

// One group per color; nothing: color < 0. Every rank calls it. By list: ivy_comm_group.
inline std::optional<Group> split(const Communicator& parent, int color, int key = 0) {
  ivy_comm* made = nullptr;
  check(ivy_comm_split(parent.handle(), color, key, &made));
  return made != nullptr ? std::optional<Group>(std::in_place, made) : std::nullopt;
}

// All ranks of the job. The constructor waits for them, the destructor for nobody.
class World : public Communicator {
 public:
  explicit World(const ivy_options* options = nullptr) : Communicator(join(options)) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { ivy_finalize(comm_); }

 private:
  static ivy_comm* join(const ivy_options* options) {
    ivy_comm* world = nullptr;
    check(ivy_init(options, &world));
    return world;
  }
};

}  // namespace ivycomm
