"""Addresses followed back to arguments, in PTX and in LLVM IR."""

from __future__ import annotations

import pytest

from lorry_kernels.aot import llir, ptx
from lorry_kernels.aot.flow import Access, Step, trace

POINTERS = frozenset({"a", "b", "table"})
ARGUMENTS = ("a", "b", "table", "n")


def access(kind: str, size: int, *arguments: str) -> Access:
    return Access("load" if kind == "load" else "store", size, frozenset(arguments))


def test_an_address_carried_around_a_loop_keeps_its_argument() -> None:
    steps = [
        Step("compute", ("next",), ("here",)),
        Step("load", ("value",), ("next",), 16),
        Step("compute", ("here",), ("next", "begin")),
    ]
    assert trace({"begin": "a"}, steps) == (access("load", 16, "a"),)


def test_a_loaded_offset_does_not_make_an_address_the_tables() -> None:
    steps = [
        Step("load", ("offset",), ("t",), 8),
        Step("compute", ("place",), ("p", "offset")),
        Step("load", ("value",), ("place",), 2),
    ]
    assert trace({"t": "table", "p": "a"}, steps)[1] == access("load", 2, "a")


def test_addresses_that_pass_through_shared_memory_are_not_lost() -> None:
    steps = [Step("share", reads=("p",)), Step("unshare", ("q",)), Step("load", ("value",), ("q",), 2)]
    assert trace({"p": "a"}, steps) == (access("load", 2, "a"),)


PTX = """
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u32 kernel_param_3
)
{
	.reg .b64 	%rd<9>;
	.loc	1 3 0                           // kernel.py:3:0
$L__func_begin0:
	ld.param.b64 	%rd1, [kernel_param_0];
	ld.param.b64 	%rd2, [kernel_param_1];
	ld.param.b64 	%rd3, [kernel_param_2];
	ld.param.b32 	%r1, [kernel_param_3];
	mad.wide.u32 	%rd4, %r1, 8, %rd3;
	// begin inline asm
	mov.u64 %rd5, 0x0;
	@%p1 ld.global.b64 { %rd5 }, [ %rd4 + 0 ];
	// end inline asm
	shl.b64 	%rd6, %rd5, 1;
	add.s64 	%rd7, %rd1, %rd6;
	@!%p2 bra 	$L__BB0_2;
	cp.async.cg.shared.global [ %r9 + 0 ], [ %rd7 + 0 ], 0x10, %r2;
	ld.global.L1::evict_last.L2::cache_hint.v4.b32 { %r3, %r4, %r5, %r6 }, [ %rd7 + 64 ], %rd8;
	{
	.reg .b16 	%rs<3>;
	ld.global.nc.u16 	%rs1, [%rd2+2];
	}
	ld.shared.v4.b32 	{%r3, %r4, %r5, %r6}, [%r9];
	@%p1 st.global.v2.b32 [ %rd2 + 0 ], { %r3, %r4 };
	atom.global.add.u32 	%r7, [%rd2], 1;
	ret;
}
"""


def test_ptx() -> None:
    assert ptx.accesses(PTX, ARGUMENTS, POINTERS) == (
        access("load", 8, "table"),
        access("load", 16, "a"),
        access("load", 16, "a"),
        access("load", 2, "b"),
        access("store", 8, "b"),
    )


def test_an_address_of_no_argument_is_of_none() -> None:
    text = "\tld.param.b32 \t%r1, [k_param_3];\n\tcvt.u64.u32 \t%rd1, %r1;\n\tld.global.u16 \t%rs1, [%rd1];\n"
    assert ptx.accesses(text, ARGUMENTS, POINTERS) == (access("load", 2),)


def test_a_width_that_ptx_does_not_have_today_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match=r"opcode: 'ld\.global\.x7'"):
        ptx.accesses("\tld.global.x7 \t%r1, [%rd1];\n", ARGUMENTS, POINTERS)


LLIR = """
define amdgpu_kernel void @kernel(ptr addrspace(1) inreg readonly captures(none) %0, ptr addrspace(1) inreg %1, \
ptr addrspace(1) inreg %2, i32 inreg %3, ptr addrspace(1) inreg %4) local_unnamed_addr #0 !dbg !4 {
  %5 = zext i32 %3 to i64, !dbg !7
  %6 = getelementptr i64, ptr addrspace(1) %2, i64 %5, !dbg !7
  %7 = load <1 x i64>, ptr addrspace(1) %6, align 8, !dbg !8
  %8 = extractelement <1 x i64> %7, i64 0, !dbg !8
  %9 = getelementptr bfloat, ptr addrspace(1) %0, i64 %8, !dbg !9
  br label %10

10:
  %11 = phi ptr addrspace(1) [ %9, %4 ], [ %12, %10 ]
  %12 = getelementptr i8, ptr addrspace(1) %11, i64 64
  %13 = load <8 x bfloat>, ptr addrspace(1) %12, align 16, !dbg !28
  %14 = load bfloat, ptr addrspace(1) %1, align 2
  store <4 x i16> %15, ptr addrspace(3) @global_smem, align 8
  %16 = load <4 x i16>, ptr addrspace(3) %17, align 8
  store <2 x float> %18, ptr addrspace(1) %1, align 8
  %19 = tail call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1) %1, i16 0, i64 999, i32 7)
  %20 = tail call <4 x i32> @llvm.amdgcn.raw.ptr.buffer.load.v4i32(ptr addrspace(8) %19, i32 %3, i32 0, i32 0)
  ret void
}
"""


def test_llvm_ir() -> None:
    assert llir.accesses(LLIR, ARGUMENTS, POINTERS) == (
        access("load", 8, "table"),
        access("load", 16, "a"),
        access("load", 2, "b"),
        access("store", 8, "b"),
        access("load", 16, "b"),
    )


def test_text_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="amdgpu_kernel"):
        llir.accesses("define void @f() {\n}\n", ARGUMENTS, POINTERS)
