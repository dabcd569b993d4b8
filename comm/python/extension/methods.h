// SPDX-License-Identifier: Apache-2.0
// Makes methods of the C interface's functions. A method has the function's name and is derived
// from its prototype: Argument<T> says which Python objects a parameter of type T takes, and
// whether it is a result instead. A method returns None, its result, or a tuple of several, and
// raises the exception for the function's code.
//
// The package prepares all arguments: it encodes text and keeps memory alive that an asynchronous
// operation uses.
//
// Thread: any that is attached to the interpreter. A call releases the interpreter's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "comm/python/extension/group_handles.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"

namespace ivy::python {

struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

// The buffer of an object, held until the end of the call.
class HeldBuffer : NoCopy {
 public:
  ~HeldBuffer() {
    if (is_held_) PyBuffer_Release(&view_);
  }
  bool take(PyObject* given, int flags = 0) {
    is_held_ = PyObject_GetBuffer(given, &view_, kBufferShape | flags) == 0;
    if (!is_held_ || view_.ndim > 0) return is_held_;
    PyErr_Format(PyExc_TypeError, "a number that is no int is not a pointer");  // NumPy's, say.
    return false;
  }
  // As take(), but the buffer must be writable and have this size.
  bool take_of_size(PyObject* given, std::size_t size) {
    if (!take(given, kBufferWritable)) return false;
    if (bytes() == size) return true;
    PyErr_Format(PyExc_ValueError, "a buffer has %zu bytes instead of %zu", bytes(), size);
    return false;
  }
  void* data() const { return is_held_ ? view_.buf : nullptr; }
  std::size_t bytes() const { return is_held_ ? static_cast<std::size_t>(view_.len) : 0; }

 private:
  IvyPyBuffer view_;
  bool is_held_ = false;
};

// Bytes that the library allocated.
struct OwnedBytes : NoCopy {
  ivy_bytes value = {};
  ~OwnedBytes() { library.bytes_free(value.data); }
  PyObject* give() const {
    return PyBytes_FromStringAndSize(static_cast<const char*>(value.data),
                                     static_cast<Py_ssize_t>(value.bytes));
  }
  PyObject* give_or_none() const { return value.data ? give() : new_reference(Py_None); }
};

static_assert(sizeof(OwnedBytes) ==
              sizeof(ivy_bytes));  // Several of them are an array of ivy_bytes.

// An array of T for the C function, as long as a tuple of bytes whose items it may refer to.
template <class T>
struct Row : NoCopy {
  T* items = nullptr;
  std::size_t count = 0;

  ~Row() {
    for (std::size_t i = 0; i < count; ++i) items[i].~T();
    PyMem_Free(items);
  }
  bool make(PyObject* tuple) {
    const Py_ssize_t length = PyTuple_Size(tuple);
    if (length < 0) return false;
    items = static_cast<T*>(PyMem_Calloc(static_cast<std::size_t>(length) + 1, sizeof(T)));
    if (items == nullptr) return PyErr_NoMemory() != nullptr;
    while (count < static_cast<std::size_t>(length)) ::new (&items[count++]) T{};
    return true;
  }
  bool take(PyObject* tuple, bool (*take)(PyObject*, T&)) {
    bool is_taken = make(tuple);
    for (std::size_t i = 0; is_taken && i < count; ++i) {
      is_taken = take(PyTuple_GetItem(tuple, static_cast<Py_ssize_t>(i)), items[i]);
    }
    return is_taken;
  }
};

// Raises an error if the object is not bytes, or contains a NUL.
inline bool take_text(PyObject* given, const char*& text) {
  char* begin = nullptr;
  if (PyBytes_AsStringAndSize(given, &begin, nullptr) != 0) return false;
  text = begin;
  return true;
}
inline bool take_bytes(PyObject* given, ivy_bytes& value) {
  char* begin = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(given, &begin, &size) != 0) return false;
  value = {begin, static_cast<std::size_t>(size)};
  return true;
}

// Describes a parameter of type T. kTaken: the number of Python objects that take() reads;
// kOptional: how many more it may read. pass(): the C argument. kIsResult: give() returns a new
// reference to a result, or null with an exception.
template <class T>
struct Argument;

template <int Taken, bool IsResult = false, int Optional = 0>
struct Parameter : NoCopy {
  static constexpr int kTaken = Taken;
  static constexpr int kOptional = Optional;
  static constexpr bool kIsResult = IsResult;
  static bool take(PyObject* const*, Py_ssize_t) { return true; }
  static PyObject* give() { return nullptr; }
};

// A number: an int or a float.
template <class T>
requires std::is_arithmetic_v<T>
struct Argument<T> : Parameter<1> {
  T value = 0;
  bool take(PyObject* const* given, Py_ssize_t) {
    if constexpr (std::is_floating_point_v<T>) {
      value = PyFloat_AsDouble(*given);
    } else if constexpr (std::is_signed_v<T>) {
      const long long number = PyLong_AsLongLong(*given);
      value = static_cast<T>(number);
      if (value != number) PyErr_Format(PyExc_OverflowError, "%lld does not fit", number);
    } else {
      const unsigned long long number = PyLong_AsUnsignedLongLong(*given);
      value = static_cast<T>(number);
      if (value != number) PyErr_Format(PyExc_OverflowError, "%llu does not fit", number);
    }
    return PyErr_Occurred() == nullptr;
  }
  T pass() const { return value; }
};
// A pointer to a number: a result.
template <class T>
requires(std::is_arithmetic_v<T> && !std::is_const_v<T>) struct Argument<T*> : Parameter<0, true> {
  T value = 0;
  T* pass() { return &value; }
  PyObject* give() const {
    if constexpr (std::is_floating_point_v<T>) return PyFloat_FromDouble(value);
    if constexpr (std::is_signed_v<T>) return PyLong_FromLongLong(static_cast<long long>(value));
    return PyLong_FromUnsignedLongLong(static_cast<unsigned long long>(value));
  }
};

// Memory: an address, None for null, or an object with a contiguous buffer. Whether it may be
// written is the caller's business, as for an address.
template <class T>
requires(std::is_void_v<T> || std::is_const_v<T>) struct Argument<T*> : Parameter<1> {
  T* address = nullptr;
  HeldBuffer buffer;
  bool take(PyObject* const* given, Py_ssize_t) {
    if (*given == Py_None) return true;
    if (PyLong_Check(*given)) {
      address = static_cast<T*>(PyLong_AsVoidPtr(*given));
      return PyErr_Occurred() == nullptr;
    }
    if (!buffer.take(*given)) return false;
    address = static_cast<T*>(buffer.data());
    return true;
  }
  T* pass() const { return address; }
};

// The place for a handle: a writable buffer of 8 bytes. The library writes the handle there before
// any step of the interpreter, so that an exception of a signal handler cannot lose it.
template <class T>
struct Argument<T**> : Parameter<1> {
  HeldBuffer buffer;
  bool take(PyObject* const* given, Py_ssize_t) { return buffer.take_of_size(*given, sizeof(T*)); }
  T** pass() const { return static_cast<T**>(buffer.data()); }
};
// A Work's handle: the place that received it.
template <>
struct Argument<ivy_work*> : Parameter<1> {
  Argument<ivy_work**> place;
  bool take(PyObject* const* given, Py_ssize_t left) { return place.take(given, left); }
  ivy_work* pass() const { return *place.pass(); }
};

inline constexpr int kGroupEnded = -1;  // Passed to raise_error instead of a code.

// A communicator: a Group or its handle, which is not freed during the call, or an address, for
// handles that are closed already.
template <>
struct Argument<ivy_comm*> : Parameter<1> {
  ivy_comm* comm = nullptr;
  std::optional<GroupCall> call;

  bool take(PyObject* const* given, Py_ssize_t) {
    if (PyLong_Check(*given)) {
      comm = static_cast<ivy_comm*>(PyLong_AsVoidPtr(*given));
      return PyErr_Occurred() == nullptr;
    }
    call.emplace(*given);
    comm = call->comm;
    if (!*call) raise_code(kGroupEnded);
    return static_cast<bool>(*call);
  }
  ivy_comm* pass() const { return comm; }
};
template <>
struct Argument<const ivy_comm*> : Argument<ivy_comm*> {};

// Text: bytes without NUL, or None.
template <>
struct Argument<const char*> : Parameter<1> {
  const char* text = nullptr;
  bool take(PyObject* const* given, Py_ssize_t) {
    return *given == Py_None || take_text(*given, text);
  }
  const char* pass() const { return text; }
};
// Several texts: a tuple of bytes. The number of them is the C function's next argument.
template <>
struct Argument<const char* const*> : Parameter<1> {
  Row<const char*> texts;
  bool take(PyObject* const* given, Py_ssize_t) { return texts.take(*given, take_text); }
  const char* const* pass() const { return texts.items; }
};

// Values of the store: bytes.
template <>
struct Argument<ivy_bytes> : Parameter<1> {
  ivy_bytes value = {};
  bool take(PyObject* const* given, Py_ssize_t) { return take_bytes(*given, value); }
  ivy_bytes pass() const { return value; }
};
template <>
struct Argument<const ivy_bytes*> : Parameter<1> {
  Row<ivy_bytes> values;
  bool take(PyObject* const* given, Py_ssize_t) { return values.take(*given, take_bytes); }
  const ivy_bytes* pass() const { return values.items; }
};
template <>
struct Argument<ivy_bytes*> : Parameter<0, true> {
  OwnedBytes owned;
  ivy_bytes* pass() { return &owned.value; }
  PyObject* give() const { return owned.give(); }
};

// Takes a tuple of keys; the result is a tuple of their values.
struct StoreRead {
  Row<const char*> keys;
  Row<OwnedBytes> values;
};
template <>
struct Argument<StoreRead*> : Parameter<1, true> {
  StoreRead read;
  bool take(PyObject* const* given, Py_ssize_t) {
    return read.keys.take(*given, take_text) && read.values.make(*given);
  }
  StoreRead* pass() { return &read; }
  PyObject* give() const {
    PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(read.values.count));
    for (std::size_t i = 0; tuple != nullptr && i < read.values.count; ++i) {
      PyObject* const value = read.values.items[i].give();
      PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), value);
      if (value != nullptr) continue;
      Py_DECREF(tuple);
      return nullptr;
    }
    return tuple;
  }
};

// Takes the expected value or None, and the desired one. The result is (whether it was stored, the
// value afterwards or None).
template <>
struct Argument<ivy_swap*> : Parameter<2, true> {
  ivy_swap swap = {};
  ivy_bytes expected = {};
  OwnedBytes current;

  bool take(PyObject* const* given, Py_ssize_t) {
    if (given[0] != Py_None) {
      if (!take_bytes(given[0], expected)) return false;
      swap.expected = &expected;
    }
    return take_bytes(given[1], swap.desired);
  }
  ivy_swap* pass() { return &swap; }
  PyObject* give() {
    current.value = swap.current;
    return Py_BuildValue("NN", PyBool_FromLong(swap.stored), current.give_or_none());
  }
};
// A buffer with the struct, which a later call may continue.
template <>
struct Argument<ivy_store_meeting*> : Parameter<1> {
  HeldBuffer buffer;
  bool take(PyObject* const* given, Py_ssize_t) {
    return buffer.take_of_size(*given, sizeof(ivy_store_meeting));
  }
  ivy_store_meeting* pass() const { return static_cast<ivy_store_meeting*>(buffer.data()); }
};
// The result is (what, key or None, value or None).
template <>
struct Argument<ivy_store_change*> : Parameter<0, true> {
  ivy_store_change change = {};
  OwnedBytes key;
  OwnedBytes value;

  ivy_store_change* pass() { return &change; }
  PyObject* give() {
    key.value = change.key;
    value.value = change.value;
    return Py_BuildValue("iNN", static_cast<int>(change.what), key.give_or_none(),
                         value.give_or_none());
  }
};
// The result is (source, tag, bytes). An asynchronous call leaves it empty.
template <>
struct Argument<ivy_message*> : Parameter<0, true> {
  ivy_message message = {sizeof(ivy_message), IVY_ANY_SOURCE, IVY_ANY_TAG, 0};
  ivy_message* pass() { return &message; }
  PyObject* give() const {
    return Py_BuildValue("iiK", static_cast<int>(message.source), static_cast<int>(message.tag),
                         static_cast<unsigned long long>(message.bytes));
  }
};
// The result is (kind, rank, pid, signal, exit code, sequence, host, operation).
template <>
struct Argument<ivy_failure*> : Parameter<0, true> {
  ivy_failure failure = {};
  ivy_failure* pass() {
    failure.struct_bytes = sizeof failure;
    return &failure;
  }
  PyObject* give() const {
    return Py_BuildValue("iiiiiKyy", static_cast<int>(failure.kind), static_cast<int>(failure.rank),
                         static_cast<int>(failure.pid), static_cast<int>(failure.signal),
                         static_cast<int>(failure.exit_code),
                         static_cast<unsigned long long>(failure.sequence), failure.host,
                         failure.operation);
  }
};

// A tuple of its fields: init_method (a str or None), rank, world_size and timeout_ms.
template <>
struct Argument<const ivy_options*> : Parameter<1> {
  ivy_options options = {};
  bool take(PyObject* const* given, Py_ssize_t) {
    long long timeout_ms = 0;
    options.struct_bytes = sizeof options;
    const bool is_taken = PyArg_ParseTuple(*given, "ziiL", &options.init_method, &options.rank,
                                           &options.world_size, &timeout_ms) != 0;
    options.timeout_ms = timeout_ms;
    return is_taken;
  }
  const ivy_options* pass() const { return &options; }
};
// A tuple of its fields: name, a str; ranks, an array of 32 bits each; and timeout_ms.
template <>
struct Argument<const ivy_members*> : Parameter<1> {
  ivy_members members = {};
  HeldBuffer ranks;
  bool take(PyObject* const* given, Py_ssize_t) {
    PyObject* array = nullptr;
    long long timeout_ms = 0;
    if (PyArg_ParseTuple(*given, "sOL", &members.name, &array, &timeout_ms) == 0) return false;
    if (!ranks.take(array)) return false;
    members.struct_bytes = sizeof members;
    members.ranks = static_cast<const std::int32_t*>(ranks.data());
    members.rank_count = static_cast<std::int32_t>(ranks.bytes() / sizeof(std::int32_t));
    members.timeout_ms = timeout_ms;
    return true;
  }
  const ivy_members* pass() const { return &members; }
};

// Takes up to four of its fields: timeout_ms (0: the group's), factor, stream (None: host memory)
// and the place for the handle of an asynchronous operation (None: the call blocks).
template <>
struct Argument<const ivy_call*> : Parameter<0, false, 4> {
  Argument<std::int64_t> timeout_ms;
  Argument<double> factor;
  DenseMemory memory;  // Only its device and stream are used.
  Argument<ivy_work**> work;
  ivy_call* passed = nullptr;

  Argument() { factor.value = 1; }
  bool take(PyObject* const* given, Py_ssize_t left) {
    if (left > 0 && !timeout_ms.take(given, 1)) return false;
    if (left > 1 && !factor.take(given + 1, 1)) return false;
    if (left > 2 && given[2] != Py_None) {
      memory.device = 0;
      memory.stream = PyLong_AsVoidPtr(given[2]);
      if (PyErr_Occurred() != nullptr) return false;
    }
    return left < 4 || given[3] == Py_None || work.take(given + 3, 1);
  }
  // The fields that call_without_lock() has not set.
  const ivy_call* pass() const {
    passed->timeout_ms = timeout_ms.value;
    passed->factor = factor.value;
    return passed;
  }
};

// Calls the function with these arguments, without the interpreter's lock. Returns false with an
// exception set.
template <class Function, class... All>
bool call_code(Function function, Argument<All>&... arguments) {
  Argument<const ivy_call*>* options = nullptr;
  [[maybe_unused]] const auto find = [&](auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, Argument<const ivy_call*>>) {
      options = &argument;
    }
  };
  (find(arguments), ...);
  const auto call = [&](ivy_call* how) {
    if (options != nullptr) options->passed = how;
    return function(arguments.pass()...);
  };
  return options != nullptr ? call_without_lock(call, options->memory, options->work.pass())
                            : call_without_lock(call);
}

inline PyObject* python_value(int number) { return PyLong_FromLong(number); }
inline PyObject* python_value(const char* text) {
  return text != nullptr ? PyBytes_FromString(text) : new_reference(Py_None);
}

// Returns the results: None, one, or a tuple.
template <class... All>
PyObject* results_of(Argument<All>&... arguments) {
  constexpr int kResults = (0 + ... + static_cast<int>(Argument<All>::kIsResult));
  if constexpr (kResults == 0) {
    return new_reference(Py_None);
  } else {
    PyObject* const all = PyTuple_New(kResults);
    bool is_made = all != nullptr;
    int index = 0;
    const auto add = [&](auto& argument) {
      if (!std::decay_t<decltype(argument)>::kIsResult || !is_made) return;
      PyObject* const result = argument.give();
      is_made = result != nullptr && PyTuple_SetItem(all, index++, result) == 0;
    };
    (add(arguments), ...);
    PyObject* const only =
        kResults == 1 && is_made ? new_reference(PyTuple_GetItem(all, 0)) : nullptr;
    if (is_made && kResults > 1) return all;
    Py_XDECREF(all);
    return only;
  }
}

template <class R, class... All, std::size_t... Index>
PyObject* call_function(R (*function)(All...), bool is_code, PyObject* const* given,
                        Py_ssize_t count, std::index_sequence<Index...>) {
  constexpr int kTaken = (0 + ... + Argument<All>::kTaken);
  constexpr int kOptional = (0 + ... + Argument<All>::kOptional);
  if (count < kTaken || count > kTaken + kOptional) {
    return PyErr_Format(PyExc_TypeError, "got %zd arguments instead of %d", count, kTaken);
  }
  std::tuple<Argument<All>...> arguments;
  Py_ssize_t next = 0;
  [[maybe_unused]] const auto take = [&](auto& argument) {
    const Py_ssize_t at = next;
    next += std::decay_t<decltype(argument)>::kTaken;
    return argument.take(given + at, count - at);
  };
  if (!(take(std::get<Index>(arguments)) && ...)) return nullptr;
  if constexpr (std::is_same_v<R, int>) {
    if (is_code) {
      return call_code(function, std::get<Index>(arguments)...)
                 ? results_of(std::get<Index>(arguments)...)
                 : nullptr;
    }
  }
  if constexpr (std::is_void_v<R>) {
    function(std::get<Index>(arguments).pass()...);
    return new_reference(Py_None);
  } else {
    return python_value(function(std::get<Index>(arguments).pass()...));
  }
}

template <class R, class... All>
PyObject* call_function(R (*function)(All...), bool is_code, PyObject* const* given,
                        Py_ssize_t count) {
  return call_function(function, is_code, given, count, std::index_sequence_for<All...>());
}

// Two functions whose results depend on other arguments are called through these.
inline int store_get(ivy_comm* comm, const char* key, std::int64_t timeout_ms, ivy_bytes* value) {
  return library.store_get(comm, key, timeout_ms, &value->data, &value->bytes);
}
inline int store_multi_get(ivy_comm* comm, StoreRead* read) {
  return library.store_multi_get(comm, read->keys.items, read->keys.count,
                                 &read->values.items->value);
}

template <auto Function, bool IsCode>
PyObject* method(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if constexpr (std::is_member_object_pointer_v<decltype(Function)>) {
    return call_function(library.*Function, IsCode, given, count);
  } else {
    return call_function(Function, IsCode, given, count);
  }
}

}  // namespace ivy::python
