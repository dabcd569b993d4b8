// SPDX-License-Identifier: Apache-2.0
// Several arrays of one type as the parts of one operation.
//
// Thread: any that is attached to the interpreter; the memory may be used by any.
#pragma once

#include <cstddef>
#include <new>

#include "comm/python/extension/array_view.h"

namespace ivy::python {

class ArrayList {
 public:
  ArrayList() = default;
  ~ArrayList() {
    for (std::size_t part = 0; part < viewed_; ++part) {
      parts_[part].input.~ArrayView();
      parts_[part].output.~ArrayView();
    }
    PyMem_Free(parts_);
    PyMem_Free(columns_);
    Py_XDECREF(results_);
    Py_XDECREF(arrays_);
  }
  ArrayList(const ArrayList&) = delete;
  ArrayList& operator=(const ArrayList&) = delete;

  // Takes the arrays of a list, and creates a result for each of them unless the operation is in
  // place. Returns false, without an exception, if one of them is not usual, or if they differ in
  // type or device.
  //
  // Other threads may change the list at any time, so this object copies it to a tuple in one step
  // (PyList_AsTuple), which holds the arrays until the end.
  bool take(PyObject* list, bool is_in_place) {
    arrays_ = without_exception(PyList_AsTuple(list));
    if (arrays_ == nullptr) return false;
    const Py_ssize_t length = PyTuple_Size(arrays_);
    if (length <= 0 || !allocate(static_cast<std::size_t>(length))) return false;
    results_ = is_in_place ? PySequence_List(arrays_) : PyList_New(length);
    for (Py_ssize_t part = 0; results_ != nullptr && part < length; ++part) {
      if (!take_part(part, PyTuple_GetItem(arrays_, part), is_in_place)) return false;
    }
    return without_exception(results_) != nullptr;
  }

  std::size_t count() const { return count_; }
  const void* const* sends() const { return static_cast<const void* const*>(columns_); }
  void* const* receives() const { return static_cast<void* const*>(columns_) + count_; }
  const std::size_t* counts() const {
    return reinterpret_cast<const std::size_t*>(receives() + count_);
  }
  int dtype() const { return parts_[0].input.dtype(); }
  const DenseMemory& memory() const { return parts_[0].input.memory(); }
  PyObject* results() const { return results_; }

  // Returns false with an exception set.
  bool mark_all_changed() const {
    for (std::size_t part = 0; part < count_; ++part) {
      if (!mark_changed(parts_[part].written)) return false;
    }
    return true;
  }

 private:
  struct Part {
    ArrayView input;
    ArrayView output;
    PyObject* written = nullptr;  // A reference held by arrays_ or results_.
  };

  bool allocate(std::size_t count) {
    count_ = count;
    parts_ = static_cast<Part*>(PyMem_Calloc(count, sizeof(Part)));
    columns_ = static_cast<void**>(PyMem_Calloc(3 * count, sizeof(void*)));
    return parts_ != nullptr && columns_ != nullptr;
  }

  bool take_part(Py_ssize_t index, PyObject* array, bool is_in_place) {
    const auto part = static_cast<std::size_t>(index);
    auto& [input, output, written] = *::new (&parts_[part]) Part;
    viewed_ = part + 1;
    if (!input.take_any(array, is_in_place ? kBufferWritable : 0)) return false;
    if (!input.goes_with(parts_[0].input)) return false;
    const void* send = IVY_IN_PLACE;
    void* receive = input.data();
    written = array;
    if (!is_in_place) {
      PyObject* const made = empty_like(array);  // The list takes ownership.
      if (made == nullptr || PyList_SetItem(results_, index, made) != 0) return false;
      if (!output.take_any(made, kBufferWritable)) return false;
      written = made;
      send = input.data();
      receive = output.data();
    }
    columns_[part] = const_cast<void*>(send);
    columns_[count_ + part] = receive;
    reinterpret_cast<std::size_t*>(columns_ + 2 * count_)[part] = input.count();
    return true;
  }

  Part* parts_ = nullptr;
  std::size_t viewed_ = 0;    // Number of parts created so far.
  void** columns_ = nullptr;  // Send and receive addresses, and the numbers of elements.
  std::size_t count_ = 0;
  PyObject* arrays_ = nullptr;  // A tuple.
  PyObject* results_ = nullptr;
};

}  // namespace ivy::python
