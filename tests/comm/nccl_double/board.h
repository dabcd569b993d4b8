// SPDX-License-Identifier: Apache-2.0
// The bytes that the ranks of one stand-in communicator share: a file that each maps. A rank shows
// a chunk to all, or writes to another's mailbox. Every wait ends when `is_aborted` says so, and
// otherwise never, as NCCL's do.
//
// Thread: one at a time, but for is_aborted.
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
  // The file is made by who makes the unique id.
  static std::string make_file();
  // The same with a name that every rank knows, and makes.
  static void make_file(const std::string& path);

  Board(std::string path, int rank, int size);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Maps the file and waits for all ranks. False: aborted, or there is no such file.
  bool attach();
  // Every rank shows `bytes` of its own (null: nothing) and sees the others', piece by piece.
  using See =
      std::function<void(int rank, std::size_t offset, const char* data, std::size_t bytes)>;
  bool show(const char* own, std::size_t bytes, const See& see);
  // All of them at once.
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
