# SPDX-License-Identifier: Apache-2.0
# The bundle that is sent to hosts that lack this build: lib/ivyrun/bundle-ARCH.run next to bin/, and its
# SHA-256. Equal contents give an equal file, so an unchanged ivy-node is never sent again.
if(TARGET ivy-node)
  set(IVY_PYTHON_ARCHIVE ${CMAKE_BINARY_DIR}/lib/ivyrun/ivycomm.zip)
  set(IVY_PYTHON_HOOK ${CMAKE_BINARY_DIR}/lib/ivyrun/hook/sitecustomize.py)  # The target ivy-node makes it.
  file(GLOB_RECURSE IVY_PYTHON_FILES CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/comm/python
       ${CMAKE_SOURCE_DIR}/comm/python/ivycomm/*.py ${CMAKE_SOURCE_DIR}/comm/python/ivycomm_*.py
       ${CMAKE_SOURCE_DIR}/comm/python/ivycomm_entry_points.dist-info/*)
  list(TRANSFORM IVY_PYTHON_FILES PREPEND ${CMAKE_SOURCE_DIR}/comm/python/ OUTPUT_VARIABLE IVY_PYTHON_PATHS)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_Interpreter_FOUND)
    # no_debug_ranges leaves out the columns that tracebacks underline: they are a third of the bytecode.
    set(IVY_MAKE_ARCHIVE ${Python3_EXECUTABLE} -S -X no_debug_ranges ${CMAKE_CURRENT_SOURCE_DIR}/make_archive.py
        ${IVY_PYTHON_ARCHIVE})
  else()  # Python then compiles the package at every start.
    set(IVY_MAKE_ARCHIVE ${CMAKE_COMMAND} -E tar cf ${IVY_PYTHON_ARCHIVE} --format=zip
        "--mtime=1980-01-02 00:00:00 UTC")
  endif()
  add_custom_command(OUTPUT ${IVY_PYTHON_ARCHIVE}
    COMMAND ${IVY_MAKE_ARCHIVE} ${IVY_PYTHON_FILES}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/comm/python
    DEPENDS ${IVY_PYTHON_PATHS} ${CMAKE_CURRENT_SOURCE_DIR}/make_archive.py VERBATIM)
  set(IVY_SENT_EXTENSIONS $<TARGET_FILE:ivycomm_calls>)
  if(TARGET ivycomm_calls_free_threaded)
    list(APPEND IVY_SENT_EXTENSIONS $<TARGET_FILE:ivycomm_calls_free_threaded>)
  endif()
  set(IVY_SENT_LIBRARY ${CMAKE_BINARY_DIR}/lib/ivyrun/libivycomm.so.1)  # The target ivycomm makes it.
  # The program that decompresses the bundle, for hosts without zstd.
  find_library(IVY_ZSTD_ARCHIVE NAMES libzstd.a REQUIRED)
  find_program(IVY_ZSTD zstd REQUIRED)
  add_executable(ivy_unpack unpack/unpack_main.c)
  target_link_libraries(ivy_unpack PRIVATE ${IVY_ZSTD_ARCHIVE} gcc)
  # It has no C library: no runtime for stack guards or sanitizers, and its memcpy() and memset() are loops, which GCC
  # would otherwise compile into calls of themselves (-fno-tree-loop-distribute-patterns).
  target_compile_options(ivy_unpack PRIVATE
    -Os -ffreestanding -fno-tree-loop-distribute-patterns -fno-stack-protector -fno-sanitize=all)
  target_link_options(ivy_unpack PRIVATE -static -nostdlib -nostartfiles -no-pie -fno-sanitize=all -Wl,--gc-sections -s)
  set_target_properties(ivy_unpack PROPERTIES POSITION_INDEPENDENT_CODE OFF OUTPUT_NAME unpack
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/ivyrun)
  set(IVY_BUNDLED_FILES $<TARGET_FILE:ivy-node> $<TARGET_FILE:ivy-probe> $<TARGET_FILE:ivy-pmix>
      ${IVY_SENT_LIBRARY} ${IVY_SENT_EXTENSIONS} $<TARGET_FILE:ivycomm_jax>
      $<TARGET_FILE:ivy_nccl_profiler> ${IVY_PYTHON_ARCHIVE} ${IVY_PYTHON_HOOK})
  set(IVY_BUNDLE_LEVEL 9 CACHE STRING "zstd level of the bundle; packages use 19, which takes ten seconds longer")
  set(IVY_BUNDLE ${CMAKE_BINARY_DIR}/lib/ivyrun/bundle-${CMAKE_SYSTEM_PROCESSOR}.run)
  add_custom_command(OUTPUT ${IVY_BUNDLE} ${IVY_BUNDLE}.sha256
    COMMAND ${CMAKE_COMMAND} -DOUT=${IVY_BUNDLE} -DUNPACK=$<TARGET_FILE:ivy_unpack>
            -DZSTD=${IVY_ZSTD} -DLEVEL=${IVY_BUNDLE_LEVEL} "-DFILES=${IVY_BUNDLED_FILES}"
            -DBUILD_NAME=${CMAKE_BINARY_DIR}/proto/build_name.cc
            -P ${CMAKE_CURRENT_SOURCE_DIR}/make_bundle.cmake
    DEPENDS ivy_unpack ivy-node ivy-probe ivy-pmix ivycomm ivycomm_jax ivy_nccl_profiler
            ${IVY_SENT_LIBRARY} ${IVY_SENT_EXTENSIONS} ${IVY_PYTHON_ARCHIVE}
            ${CMAKE_CURRENT_SOURCE_DIR}/make_bundle.cmake VERBATIM)
  # A launcher sends each host the bundle of the host's architecture, so this one is copied next to the launcher's own.
  set(IVY_LAUNCHER_BUILD "" CACHE PATH "Build folder of a launcher for another architecture, which sends this bundle")
  set(copy)
  if(IVY_LAUNCHER_BUILD)
    set(copy COMMAND ${CMAKE_COMMAND} -E make_directory ${IVY_LAUNCHER_BUILD}/lib/ivyrun
        COMMAND ${CMAKE_COMMAND} -E copy_if_different
                ${IVY_BUNDLE} ${IVY_BUNDLE}.sha256 ${IVY_LAUNCHER_BUILD}/lib/ivyrun)
  endif()
  add_custom_target(ivy_bundle ALL ${copy} DEPENDS ${IVY_BUNDLE} VERBATIM)
endif()
