// SPDX-License-Identifier: Apache-2.0
// The bytes that the ranks of one test communicator share, in a file that each rank maps. A rank
// shows a chunk to all ranks or writes to another's mailbox. Waits end only if `is_aborted` is set,
// as in NCCL.
//
// Thread: one at a time, except for is_aborted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nccl_double {

// Part of one message between two ranks.
struct Transfer {
  char* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  bool is_send = false;
  std::size_t done = 0;
};

class Board {
 public:
  // The rank that makes the unique id creates the file.
  static std::string make_file();
  // The same, with a name that every rank knows and creates.
  static void make_file(const std::string& path);

  Board(std::string path, int rank, int size);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Maps the file and waits for all ranks. Returns false if aborted, or if the file does not exist.
  bool attach();
  // Every rank shows `bytes` (null: none) and sees those of the others, chunk by chunk.
  using See =
      std::function<void(int rank, std::size_t offset, const char* data, std::size_t bytes)>;
  bool show(const char* own, std::size_t bytes, const See& see);
  // Runs all transfers at the same time.
  bool transfer(std::vector<Transfer>& transfers);
  void abort() { is_aborted_ = true; }
  bool is_aborted() const { return is_aborted_; }

 private:
  struct Header;
  struct Slot;
  struct Mailbox;
  Slot& slot(int rank) const;
  Mailbox& mailbox(int from, int to) const;
  std::size_t total_bytes() const;
  template <class Condition>
  bool await(Condition condition) const;
  bool move(Transfer& transfer);

  const std::string path_;
  const int rank_;
  const int size_;
  char* memory_ = nullptr;
  std::uint64_t chunks_ = 0;  // Shown so far.
  std::atomic<bool> is_aborted_{false};
};

}  // namespace nccl_double
